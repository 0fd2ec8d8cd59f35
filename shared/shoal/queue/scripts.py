"""The scripts of the queue: each is one file of `lua/`, after the files of `lua/parts/` that it needs.

Workers keep the texts of `put` and `cancel` in Redis for other programs, which need no copy.
"""

import hashlib

from shoal.broker.broker import Script

#: The parts of each script beside `lib`, in the order in which they know each other.
_PARTS = {
    "announce": (),
    "answer": ("lane", "place", "unread", "reply", "letter"),
    "cancel": ("arguments", "limits", "lane", "place", "unread", "reply"),
    "dead_letters": (),
    "give_back": ("lane", "place"),
    "put": ("arguments", "limits", "lane", "unread", "room", "once"),
    "read": ("unread",),
    "reclaim": ("lane", "place"),
    "start": ("lane", "place"),
    "sweep": ("arguments", "limits", "unread"),
    "take": ("lane", "place", "turns"),
    "watch": (),
    "withdraw": ("lane", "place"),
}


def load(name: str) -> Script:
    """Return the script of that name."""
    return Script.load("shoal.queue", *(f"parts/{part}" for part in ("lib", *_PARTS[name])), name)


PUT, CANCEL = load("put"), load("cancel")

#: Tells these scripts from another version's.
DIGEST = hashlib.sha1((PUT.digest + CANCEL.digest).encode(), usedforsecurity=False).hexdigest()

#: The fields of the hash in Redis.
PUBLISHED = {"put": PUT.text, "cancel": CANCEL.text, "digest": DIGEST}
