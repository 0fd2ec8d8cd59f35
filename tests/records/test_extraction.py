"""The text of web pages, Markdown and PDF files, read by a separate process."""

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from random import Random

import pytest
from conftest import PATIENCE_S
from pdf_files import pdf, pdf_of

from shoal.errors import Unavailable
from shoal.extraction.file_formats import extract_markdown
from shoal.extraction.reader_client import MAX_FILE_BYTES, MAX_TEXT_BYTES, Extracted, ReaderClient, UnreadableFile

needs_html = pytest.mark.skipif(not find_spec("selectolax"), reason="selectolax is not installed")
needs_pdf = pytest.mark.skipif(not find_spec("pypdf"), reason="pypdf is not installed")


@pytest.fixture
def reader() -> Iterator[ReaderClient]:
    """A reader with ten seconds of processor time for a PDF file, and one second for any other file."""
    with ReaderClient(10, 1) as reader:
        yield reader


def read(reader: ReaderClient, kind: str, data: bytes) -> Extracted:
    """Read a file in two pieces, and return its text and title."""
    return reader.read(kind, [data[:1_000], data[1_000:]])


def fault(reader: ReaderClient, kind: str, data: bytes) -> str:
    """Return the error of a file that cannot be read."""
    with pytest.raises(UnreadableFile) as error:
        read(reader, kind, data)
    return str(error.value)


PAGE = """<!doctype html><html><head><title> News
 of today </title><style>p { color: red }</style></head><body><nav><a href=/>Home</a></nav>
<h1>Storms</h1><p>Rain   in <b>Eu</b>rope
&amp; Asia.<p>The second<br>has two lines.<script>alert("no")</script>
<table><tr><td>a<td>b<tr><th>c</table><pre>  kept
   as is </pre><ul><li>one<li>two</ul><footer>Imprint</footer></body></html>"""


@needs_html
class TestWebPages:
    def test_the_text_has_a_line_for_each_block(self, reader: ReaderClient) -> None:
        found = read(reader, "html", PAGE.encode())
        assert found.title == "News of today"
        assert found.text.split("\n") == [
            *("Storms", "", "Rain in Europe & Asia.", "", "The second", "has two lines.", "", "a b", "c", ""),
            *("  kept", "   as is ", "", "one", "two"),
        ]
        page = "<body>Menu<main><p>Storm</main><article>One</article><article>Other</article>"
        assert read(reader, "html", page.encode()).text == "Storm"  # a main element has the text, if there is one
        assert read(reader, "html", page.replace("main", "div").encode()).text.split("\n") == [
            *("Menu", "", "Storm", "", "One", "", "Other")
        ]

    def test_a_page_is_read_in_its_declared_encoding(self, reader: ReaderClient) -> None:
        for declared, encoding in (
            *(("", "utf-8"), ("", "utf-8-sig"), ("", "utf-16"), ("<meta charset=latin1>", "cp1252")),
            ('<meta http-equiv="Content-Type" content="text/html; charset=ISO-8859-15">', "iso8859-15"),
            ('<?xml version="1.0" encoding="windows-1250"?>', "cp1250"),
            *(("<meta charset=Shift_JIS>", "cp932"), ("<meta charset=X-SJIS>", "cp932")),
            *(("<meta charset=GB2312>", "gb18030"), ("<meta charset=GBK>", "gb18030")),
            *(("<meta charset=EUC-KR>", "cp949"), ("<meta charset=Big5>", "big5hkscs")),
        ):
            odd = {"cp932": "①暴風雨", "gb18030": "€ 镕", "cp949": "똠", "big5hkscs": "啲"}
            text = odd.get(encoding, "Zürich")
            assert read(reader, "html", f"{declared}<p>{text}".encode(encoding)).text == text

    def test_a_page_that_cannot_be_read_says_why(self, reader: ReaderClient) -> None:
        for data, reason in (
            ("<p>Zürich".encode("cp1252"), "byte 0xfc at 4 is not utf-8, and it declares no other encoding"),
            ("<meta charset=euc-jp><p>Zürich".encode("cp1252"), "is not euc_jp, which it declares"),
            (b"<meta charset=zip><p>a", "it declares the encoding zip, which is not known: convert it to UTF-8"),
            (b"<p>a\0b", "there is a NUL character in it"),
            (b"<script>a()</script>", "there is no text in it: leave it out"),
        ):
            assert reason in fault(reader, "html", data)

    def test_a_hostile_page_ends_neither_this_process_nor_its_reader(self, reader: ReaderClient) -> None:
        """The time of the parser grows with the square of the depth of elements."""
        assert "has ended (exit code -24)" in fault(reader, "html", b"<div>" * 400_000 + b"x")  # SIGXCPU
        assert read(reader, "html", b"<div>" * 10_000 + b"rain").text == "rain"


@needs_pdf
class TestPdfFiles:
    def test_the_text_has_all_pages_and_divided_words_are_joined(self, reader: ReaderClient) -> None:
        found = read(reader, "pdf", pdf(["Storm\\000 in Europe.", "Rain."], "News", packed=True))
        assert found == Extracted("Storm in Europe.\n\nRain.", "News")
        lines = " ".join(f"({line}) Tj T*" for line in ("a exam-", "ple of X-", "Rays"))
        content = f"BT /F1 12 Tf 72 700 Td 14 TL {lines} ET".encode()
        assert read(reader, "pdf", pdf_of([content])).text == "a example of X-\nRays"

    def test_an_encrypted_file_is_read_only_without_a_password(self, reader: ReaderClient) -> None:
        from pypdf import PdfReader, PdfWriter

        for password in ("", "secret"):
            writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(["Storm."]))))
            writer.encrypt(password, "owner", algorithm="RC4-128")
            writer.write(file := io.BytesIO())
            if password:
                assert fault(reader, "pdf", file.getvalue()) == "it is encrypted: save it without a password"
            else:
                assert read(reader, "pdf", file.getvalue()).text == "Storm."

    def test_a_file_that_cannot_be_read_says_why(self, reader: ReaderClient) -> None:
        for data, reason in (
            (b"no PDF at all", "not readable as pdf (PdfStreamError: "),
            (pdf(["Storm."])[:200], "not readable as pdf ("),
            (pdf([""]), "there is no text in it: if its pages are pictures, run OCR on it first"),
            (pdf_of([]), "there is no text in it: leave it out"),
        ):
            assert reason in fault(reader, "pdf", data)

    @pytest.mark.wide
    def test_packed_pages_with_very_much_text_are_refused(self, reader: ReaderClient) -> None:
        pages = pdf_of([b"(" + b"a" * 80_000_000 + b") Tj"], packed=True)
        assert len(pages) < 10**6
        assert fault(reader, "pdf", pages)
        text = b"BT /F1 12 Tf (" + b"storm " * 200_000 + b") Tj ET"
        assert "characters of text: cut it into several files" in fault(reader, "pdf", pdf_of([text] * 10, packed=True))
        assert read(reader, "pdf", pdf(["Rain."])).text == "Rain."

    def test_damaged_files_are_read_or_refused(self, reader: ReaderClient) -> None:
        assert fault(reader, "pdf", pdf(["Storm."]).replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"))  # it is its own child
        random, num_read = Random(7), 0
        whole = pdf(["Storm in Europe.", "Rain."], "News", packed=True)
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(random.choice((1, 3, 10))):
                data[random.randrange(len(data))] = random.randrange(256)
            with contextlib.suppress(UnreadableFile):
                num_read += bool(read(reader, "pdf", bytes(data)).text)
        assert 0 < num_read < 60
        assert read(reader, "pdf", whole).title == "News"


class TestMarkdown:
    def test_the_text_is_as_it_is_written_without_front_matter_and_comments(self) -> None:
        found = extract_markdown(
            b"---\nlayout: page\ntitle: 'News of today'\n---\n# Storms #\n\nSee [the *report*](https://a.org/a_b)."
            b"<!-- not\nthis -->\r\n```python\n# code = **1**\n```\n"
        )
        text = "# Storms #\n\nSee [the *report*](https://a.org/a_b).\n```python\n# code = **1**\n```"
        assert found == Extracted(text, "News of today")
        code = "```sh\n# code\n```\nStorms\n---\n"
        for written in ("text\n\n## Storms #\n# Rain", "#  \nStorms\n======\ntext", f"{code}text"):  # the first heading
            assert extract_markdown(written.encode()) == Extracted(written, "Storms")
        assert extract_markdown(b"text\n````sh\n```\n# code\n````\n~~~\n# more").title == ""

    def test_no_text_takes_long_to_read(self, reader: ReaderClient) -> None:
        """The reader has a second of processor time for each text."""
        pieces = (b"<!--", b"# ", b"=", b"a\n", b"\n#", b"a\n==", b"`", b"```\n", b"\n ~~~", b"\n```` `")
        for begin, piece in (
            *((b"rain ", piece) for piece in pieces),
            *((b"# a", b" "), (b"# a", b" #"), (b"---\ntitle: a", b" ")),
        ):
            assert read(reader, "markdown", begin + piece * (10**6 // len(piece)) + b"b\n---\nrain").text

    def test_a_byte_that_is_not_utf_8_is_named(self, reader: ReaderClient) -> None:
        assert "byte 0xff at 3 is not utf-8" in fault(reader, "markdown", b"abc\xff")
        assert "byte 0xfc" in fault(reader, "text", "Zürich".encode("cp1252"))
        assert read(reader, "text", "Zürich".encode("utf-16")).text == "Zürich"


class TestTheReader:
    def test_a_file_or_a_text_that_is_too_large_is_refused(self, reader: ReaderClient) -> None:
        pieces = (bytes(2**24) for _ in range(MAX_FILE_BYTES // 2**24 + 1))
        with pytest.raises(UnreadableFile, match=f"it has over {MAX_FILE_BYTES:,} bytes, the limit of a file"):
            reader.read("text", pieces)
        assert f"its text has over {MAX_TEXT_BYTES:,} bytes" in fault(reader, "text", b"a" * (MAX_TEXT_BYTES + 1))
        assert read(reader, "text", b"a" * MAX_TEXT_BYTES).text == "a" * MAX_TEXT_BYTES

    @needs_html
    def test_a_caller_can_stop_the_reader(self, reader: ReaderClient) -> None:
        def stop() -> None:
            raise Unavailable("stop")

        with pytest.raises(Unavailable):
            reader.read("html", [b"<div>" * 400_000], stop)
        assert read(reader, "text", b"rain").text == "rain"

    def test_the_death_of_the_process_fails_one_file_only(self, reader: ReaderClient) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"storm"
            assert reader._process
            reader._process.kill()
            reader._process.wait()
            yield b"storm"

        with pytest.raises(UnreadableFile, match=r"the process that read it has ended \(exit code -9\)"):
            reader.read("text", pieces())
        assert read(reader, "text", b"rain").text == "rain"

    def test_a_lower_limit_of_the_system_stays(self) -> None:
        """Only root may raise a hard limit, which the process inherits."""
        program = (
            "import resource; from shoal.extraction.reader_client import ReaderClient\n"
            "resource.setrlimit(resource.RLIMIT_CPU, (50, 60))\n"
            "with ReaderClient() as reader: print(reader.read('text', [b'rain']).text)\n"
            "from shoal.extraction.reader_process import _limit_time\n"
            "_limit_time(100); print(resource.getrlimit(resource.RLIMIT_CPU))"
        )
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.stdout.split("\n")[:2] == ["rain", "(60, 60)"], ended.stderr
