"""The chat template in which a decoder such as Qwen3-Reranker reads a query and a text."""

import re
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from shoal.errors import ModelMismatch

#: A line of a template that names the message of a role, and may have a default message.
_ROLE = re.compile(
    r'\{%-? set (\w+) = messages \| selectattr\("role", "eq", "(\w+)"\) \| map\(attribute="content"\) \| first'
    r'(?: \| default\("([^"\\]*)"\))? -%\}\s*'
)


class Chat(NamedTuple):
    """The parts before a query, between query and text, and after the text, and the forms of query and text.

    White space beside a query or a text belongs to its form, because the tokenizer joins it with words.
    """

    parts: list[str]
    forms: list[str]


def parse(template: str, instruction: str | None) -> Chat:
    """Return the template's parts around a pair, with `instruction` or the template's default. Raises ModelMismatch.

    The template is not run. It may name the messages of roles and insert them, and nothing else.
    """
    roles = {name: (role, message) for name, role, message in _ROLE.findall(template)}
    found = re.split(r"\{\{ (\w+) \}\}", _ROLE.sub("", template).removesuffix("\n"))
    inserted = [roles.get(name, ("", ""))[0] for name in found[1::2]]
    is_known = inserted == ["system", "query", "document"] and not re.search(r"\{[{%#]", "".join(found))
    if not is_known or not found[4].strip():
        raise ModelMismatch(
            "the chat template does not insert an instruction, a query and a document, as Qwen3-Reranker's does: "
            "use its chat_template.jinja, or another cross-encoder"
        )
    before, between = found[0] + (instruction or roles[found[1]][1]) + found[2], found[4]
    parts = [before.rstrip(), between.strip(), found[6]]
    query_end, _, text_start = between.partition(parts[1])
    return Chat(parts, [before.removeprefix(parts[0]) + "{}" + query_end, text_start + "{}"])


def write_tokenizer(path: Path, parts: list[str]) -> None:
    """Change the tokenizer in the file so that it puts the parts around the two texts of a pair."""
    tokenizer = Tokenizer.from_file(str(path))
    encoded = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
    special = [{"id": f"#{n}", "ids": part.ids, "tokens": part.tokens} for n, part in enumerate(encoded)]
    tokenizer.post_processor = TemplateProcessing(single="$A", pair="#0 $A #1 $B #2", special_tokens=special)
    tokenizer.save(str(path))
