"""docs/long-jobs.md says what the code says."""

import re
import time
from dataclasses import fields
from typing import Any

from page import read, table

from shoal.bulk.embed_file import BulkRequest
from shoal.long_jobs.submission import KINDS, WEBHOOK
from shoal.settings import Settings, variable
from shoal_workers.index.long_jobs import BuildIndex, ManageIndex
from shoal_workers.long_jobs.webhook import sign

PAGE = "docs/long-jobs.md"


def test_every_argument_of_every_kind_is_listed() -> None:
    rows = {kind.strip("`"): set(re.findall(r"`(\w+)`", cells[0])) for kind, cells in table(PAGE, "kind").items()}
    assert rows.keys() == KINDS.keys() - {WEBHOOK.name}
    for kind, request in (("embed_file", BulkRequest), ("build_index", BuildIndex), ("manage_index", ManageIndex)):
        assert {item.name for item in fields(request)} <= rows[kind], kind


def test_every_named_setting_exists() -> None:
    named = set(re.findall(r"`(SHOAL_\w+)`", read(PAGE)))
    assert len(named) > 5
    assert named <= {variable(item.name) for item in fields(Settings)} | {"SHOAL_HOME"}


def test_the_signature_of_a_webhook_is_checked_as_the_page_says() -> None:
    (program,) = re.findall(r"```python\n(import hmac.*?)```", read(PAGE), re.DOTALL)
    found: dict[str, Any] = {}
    exec(program, found)
    header = sign("secret", b"{}", int(time.time()))
    assert found["is_genuine"](b"{}", header, "secret")
    assert not found["is_genuine"](b"{ }", header, "secret")
    assert not found["is_genuine"](b"{}", "", "secret")
    assert not found["is_genuine"](b"{}", sign("secret", b"{}", int(time.time()) - 3_600), "secret")
