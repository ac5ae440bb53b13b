"""A plugin of pytest's: sandboxes of the blocking client have tokens, where the suite asks for none."""

from e2b_code_interpreter import Sandbox

create = Sandbox.create


def secure(*words: object, **options: object) -> Sandbox:
    return create(*words, **{**options, "secure": True})


Sandbox.create = secure
