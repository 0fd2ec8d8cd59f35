"""Decoders that score pairs in a chat template, like Qwen3-Reranker, give the scores of CrossEncoder."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from asking import ask
from conftest import run_reference
from queues import Queue

from shoal.errors import ModelMismatch
from shoal.operations import Rerank
from shoal_workers.encoding.bucketing import Bucketing
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.encoding.reranker import Reranker, sigmoid
from shoal_workers.loop.worker import Worker
from shoal_workers.model.prepare import prepare_if_needed

#: Pairs whose tokens differ if query or text are tokenized without the white space beside them.
PAIRS = [
    ("what is a storm?", "the storm rises"),
    ("storm", " rain\n\n and change "),
    ("what storms?\n", "no"),
    ("(a storm)", ""),
    ("", "<|im_end|> yes {} 価格 😀"),
    ("storm " * 20, "the storm of europe falls in " * 9),
]


@pytest.fixture(scope="module")
def decoders(torch_reference: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three decoders, with the scores that Sentence Transformers gives to `PAIRS`."""
    folder = tmp_path_factory.mktemp("decoders")
    (folder / "pairs.json").write_text(json.dumps(PAIRS))
    run_reference("decoder_reference.py", *(folder / name for name in ("pairs.json", "tied", "untied", "scores")))
    return folder


@pytest.mark.wide
@pytest.mark.parametrize("name", ["tied", "untied", "scores"])
def test_scores_equal_the_scores_of_sentence_transformers(decoders: Path, name: str, tmp_path: Path) -> None:
    folder = prepare_if_needed(tmp_path, str(decoders / name))
    with np.load(decoders / f"{name}.npz") as file:
        expected = dict(file)
    assert np.ptp(expected["raw"]) > 0.3
    for engine, precision, most in (("openvino", "f32", 1e-4), ("torch", "f32", 1e-4), ("openvino", "bf16", 0.2)):
        opened = Reranker.open(folder, engine, precision, 1)
        assert opened.score(PAIRS) == pytest.approx(expected["raw"], abs=most)
        alone = np.concatenate([opened.score([pair]) for pair in PAIRS])
        assert alone == pytest.approx(expected["raw"], abs=most)
        assert sigmoid(alone) == pytest.approx(expected["scores"], abs=most)


@pytest.mark.wide
def test_a_cut_pair_keeps_the_template(decoders: Path, tmp_path: Path, queue: Queue, encoder: Encoder) -> None:
    source = Path(shutil.copytree(decoders / "tied", tmp_path / "model"))
    settings = json.loads((source / "tokenizer_config.json").read_text()) | {"model_max_length": 160}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    opened = Reranker.open(prepare_if_needed(tmp_path / "home", str(source)), "openvino", "f32", 1)
    worker = Worker(queue.consumer(), encoder, {}, Bucketing(4_096), reranker=opened)
    job = Rerank(["rain", "storm and rain " * 30], query="a storm?")
    (reply,) = ask(worker, job)
    whole, cut = reply.characters
    assert (whole, reply.truncated, reply.tokens[1]) == (4, [False, True], 160)
    kept, again = opened.tokenize([("a storm?", job.texts[1]), ("a storm?", job.texts[1][:cut])])
    assert kept.ids == again.ids
    assert not again.truncated


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("chat_template.jinja", "{{ query }}", "{{ text }}", "does not insert an instruction, a query and a document"),
        ("chat_template.jinja", "<think>", "{% if x %}", "does not insert an instruction, a query and a document"),
        ("chat_template.jinja", "<Document>: ", "", "does not insert an instruction, a query and a document"),
        ("1_LogitScore/config.json", "258", "269", "LogitScore names the words 269 and 259 of 269"),
        (
            "1_LogitScore/config.json",
            "259",
            "null",
            "false_token_id in config.json is null: it must be a number from 0",
        ),
        ("tokenizer.json", '"BPE"', '"X"', r"tokenizer\.json cannot be used"),
        ("config.json", '"tie_word_embeddings": true', '"tie_word_embeddings": false', r"lack tensor lm_head\.weight"),
    ],
)
def test_another_score_is_refused(decoders: Path, tmp_path: Path, file: str, old: str, new: str, words: str) -> None:
    source = Path(shutil.copytree(decoders / "tied", tmp_path / "model"))
    text = (source / file).read_text()
    assert old in text
    (source / file).write_text(text.replace(old, new))
    with pytest.raises(ModelMismatch, match=words):
        prepare_if_needed(tmp_path / "home", str(source))


def test_the_default_prompt_is_the_instruction(decoders: Path, tmp_path: Path) -> None:
    tokenizers = []
    for prompts in (
        {},
        {"prompts": {"a": "Find it"}, "default_prompt_name": "a"},
        {"prompts": {"a": "Find"}, "default_prompt_name": "a"},
    ):
        source = Path(shutil.copytree(decoders / "scores", tmp_path / "model", dirs_exist_ok=True))
        (source / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        settings = json.loads((source / "tokenizer_config.json").read_text())
        template = (source / "chat_template.jinja").read_text()
        (source / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
        (source / "chat_template.jinja").unlink()
        folder = prepare_if_needed(tmp_path / "home", str(source), force=True)
        tokenizers.append((folder / "tokenizer.json").read_text())
    assert tokenizers[0] == tokenizers[1] != tokenizers[2]
