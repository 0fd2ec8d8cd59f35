"""The Lua scripts of the queue. Each consists of the files of `lua/parts/` that it needs, and then a file of `lua/`.

Workers write the texts of the scripts `put` and `cancel` to Redis, so that other programs need no copies.
"""

import hashlib

from shoal.broker.broker import Script

#: The parts that each script needs in addition to `lib`. A part uses only the parts before it.
_PARTS = {
    "announce": (),
    "answer": ("lane", "place", "unread", "reply"),
    "cancel": ("arguments", "lane", "place", "unread", "reply"),
    "dead_letters": (),
    "give_back": ("lane", "place"),
    "put": ("arguments", "lane", "unread"),
    "note_read": ("unread",),
    "reclaim": ("lane", "place"),
    "start": ("lane", "place"),
    "sweep": ("arguments", "unread"),
    "take": ("lane", "place"),
    "watch": (),
    "withdraw": ("lane", "place"),
}


def load(name: str) -> Script:
    """Return the script with this name."""
    return Script.load("shoal.queue", *(f"parts/{part}" for part in ("lib", *_PARTS[name])), name)


PUT, CANCEL = load("put"), load("cancel")

#: The digest of both scripts, which changes when one of them does.
DIGEST = hashlib.sha1((PUT.digest + CANCEL.digest).encode(), usedforsecurity=False).hexdigest()

#: The fields of the hash that workers write to Redis.
PUBLISHED = {"put": PUT.text, "cancel": CANCEL.text, "digest": DIGEST}
