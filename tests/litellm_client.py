"""What LiteLLM gets from a server, as JSON. A program: LiteLLM leaves sockets open behind it.

Usage: python -m tests.litellm_client < QUESTIONS, which name `base`, `asked` and `tool`
"""

import asyncio
import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched


async def answers(base: dict[str, Any], asked: dict[str, Any], tool: Any) -> dict[str, Any]:
    """A chat whole and streamed, a tool call, and how embeddings are refused."""
    import litellm

    whole: Any = await litellm.acompletion(**base, **asked)
    stream: Any = await litellm.acompletion(**base, **asked, stream=True)
    streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    called: Any = await litellm.acompletion(**base, **tool)
    try:
        refused = str(await litellm.aembedding(input=["text"], **base))
    except litellm.exceptions.NotFoundError as error:
        refused = type(error).__name__
    return {
        "whole": whole.choices[0].message.content,
        "streamed": streamed,
        "called": called.choices[0].message.tool_calls[0].function.name,
        "embeddings": refused,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(answers(**json.load(sys.stdin)))))
