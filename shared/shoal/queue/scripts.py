"""The scripts that other programs run too: workers keep their texts in Redis, so nobody needs a copy."""

import hashlib

from shoal.broker.script import Script

PUT = Script.load("shoal.queue", "lib", "arguments", "limits", "lane", "unread", "room", "once", "put")
CANCEL = Script.load("shoal.queue", "lib", "arguments", "limits", "lane", "place", "unread", "finish", "cancel")

#: Tells these texts from those of another version.
DIGEST = hashlib.sha1((PUT.digest + CANCEL.digest).encode(), usedforsecurity=False).hexdigest()

#: The fields of the hash in Redis.
PUBLISHED = {"put": PUT.text, "cancel": CANCEL.text, "digest": DIGEST}
