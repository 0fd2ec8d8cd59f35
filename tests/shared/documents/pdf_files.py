"""PDF files, written by hand."""

import zlib
from collections.abc import Sequence


def pdf(pages: Sequence[str], title: str = "", packed: bool = False) -> bytes:
    """Return a file with a line of text on each page."""
    return pdf_of([f"BT /F1 12 Tf 72 700 Td ({page}) Tj ET".encode("latin-1") for page in pages], title, packed)


def pdf_of(contents: Sequence[bytes], title: str = "", packed: bool = False) -> bytes:
    """Return a file with these contents of its pages."""
    first = 4
    numbers = [first + 2 * n for n in range(len(contents))]
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{' '.join(f'{n} 0 R' for n in numbers)}] /Count {len(contents)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, content in zip(numbers, contents, strict=True):
        data = zlib.compress(content, 9) if packed else content
        kind = " /Filter /FlateDecode" if packed else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {number + 1} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        objects.append(f"<< /Length {len(data)}{kind} >>\nstream\n".encode() + data + b"\nendstream")
    objects.append(f"<< /Title ({title}) >>".encode())
    return _file(objects)


def _file(objects: Sequence[bytes]) -> bytes:
    found, places = bytearray(b"%PDF-1.4\n"), []
    for number, one in enumerate(objects, 1):
        places.append(len(found))
        found += f"{number} 0 obj\n".encode() + one + b"\nendobj\n"
    start = len(found)
    found += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    found += b"".join(f"{place:010} 00000 n \n".encode() for place in places)
    about = f"/Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R"
    return bytes(found) + f"trailer\n<< {about} >>\nstartxref\n{start}\n%%EOF\n".encode()
