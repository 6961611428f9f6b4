"""What makes images and models: requirements, set-up, and small drafts to try methods with."""
