"""The fields that a request's body can have and vLLM does not know, by their form."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool

#: A number of tokens: an integer, and no text that says one.
Tokens: TypeAlias = Annotated[int, Field(strict=True, ge=0)]


class Speculation(BaseModel):
    """The field `speculation`."""

    model_config = ConfigDict(extra="forbid")

    enabled: StrictBool | None = None
    num_speculative_tokens: Tokens | None = None


class TextPart(BaseModel):
    """A part of a predicted text."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class Prediction(BaseModel):
    """The field `prediction`, as OpenAI defines it."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The predicted text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)
