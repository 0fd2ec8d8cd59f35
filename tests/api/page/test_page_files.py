"""The files of the page: which clients get them, their headers, and the origins of other projects' files."""

import gzip
import re
import subprocess
import sys
from hashlib import sha256

from api_stub import MakeApp, error_of
from flask.testing import FlaskClient
from page import table

from shoal import __version__
from shoal_api.routes.pages import FOLDER

pytest_plugins = ["api_fixtures"]

#: The Accept header that Chromium sends when a user opens a page.
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"}

#: Largest size of all files together, compressed, in bytes.
MAX_PACKED_BYTES = 250_000

VENDOR = "api/shoal_api/page/vendor/README.md"

#: The project's own files by their names below the folder.
OWN = {
    path.relative_to(FOLDER).as_posix(): path.read_text("utf-8")
    for path in FOLDER.rglob("*.*")
    if path.parent.name != "vendor"
}


class TestTheRoot:
    def test_a_browser_gets_the_page_and_a_program_links(self, make_app: MakeApp) -> None:
        api = make_app(redis_url="redis://127.0.0.1:1/0").test_client()  # the page needs no Redis
        for accept in (BROWSER["Accept"], "text/html", "text/html;q=0.9, application/json;q=0.1"):
            response = api.get("/", headers={"Accept": accept})
            assert response.mimetype == "text/html"
            assert response.get_data(as_text=True).startswith("<!doctype html>")
            assert response.headers["Vary"] == "Accept"
        too_long = "text/html," + "a/b," * 1_000
        for other in ("*/*", "application/json", "text/html, application/json", "image/png", too_long, "", None):
            response = api.get("/", headers={} if other is None else {"Accept": other})
            assert {"name": "shoal", "version": __version__, "docs": "/docs"}.items() <= response.get_json().items()
            assert response.headers["Vary"] == "Accept"


class TestFiles:
    def test_each_file_that_the_page_or_a_script_names_exists(self, api: FlaskClient) -> None:
        page = api.get("/", headers=BROWSER).get_data(as_text=True)
        named = re.findall(r'(?:href|src)="(page/[^"]+)"', page)
        views = re.findall(r'data-view="(\w+)"', page)
        assert len(views) == 3
        for path in [*named, *(f"page/{part}" for name in views for part in (f"views/{name}.js",))]:
            response = api.get(f"/{path}")
            assert response.status_code == 200
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        for name, text in OWN.items():
            imported = re.findall(r'from "(\.[^"]+)"', text)
            assert [path for path in imported if not (FOLDER / name).parent.joinpath(path).exists()] == [], name

    def test_a_script_may_only_come_from_the_service_itself(self, api: FlaskClient) -> None:
        for path in ("/", "/page/main.js"):
            policy = api.get(path, headers=BROWSER).headers["Content-Security-Policy"]
            rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
            assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
            assert rules["frame-ancestors"] == "'none'"
            assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"

    def test_files_are_sent_once(self, api: FlaskClient) -> None:
        first = api.get("/page/main.js")
        again = api.get("/page/main.js", headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.data, first.headers["Cache-Control"]) == (304, b"", "no-cache")
        assert api.get("/page/main.js", headers={"If-None-Match": '"another"'}).status_code == 200

    def test_their_types_are_the_same_on_a_machine_without_a_list_of_types(self) -> None:
        code = "import mimetypes; mimetypes.knownfiles.clear(); import shoal_api.routes.pages; "
        code += "print(*(mimetypes.guess_type(f'a.{end}')[0] for end in ('js', 'css', 'html', 'woff2')))"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert told.split() == ["text/javascript", "text/css", "text/html", "font/woff2"]

    def test_no_other_file_is_served(self, api: FlaskClient) -> None:
        for name in ("none.js", "../app.py", "..%2fapp.py", "vendor", "", "/etc/passwd"):
            response = api.get(f"/page/{name}")
            assert (error_of(response, 404)[0], response.headers["Cache-Control"]) == ("not_found", "no-store")

    def test_all_files_together_are_small_and_name_no_other_site(self) -> None:
        data = [path.read_bytes() for path in FOLDER.rglob("*.*")]
        assert sum(min(len(file), len(gzip.compress(file))) for file in data) <= MAX_PACKED_BYTES
        assert len(OWN) > 10
        text = "".join(OWN.values())
        assert set(re.findall(r"https?://[\w.]+", text)) == {"http://www.w3.org"}  # SVG's namespace, not a link
        unsafe = r"unsafeHTML|innerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        assert re.findall(unsafe, text) == []


def test_the_files_of_other_projects_are_all_listed() -> None:
    rows = {name.strip("`"): cells for name, cells in table(VENDOR, "file").items()}
    own = {path.name for path in (FOLDER / "vendor").iterdir()} - {"README.md"}
    assert rows.keys() == {name for name in own if not name.endswith(".LICENSE")}
    for name, (package, licence, digest) in rows.items():
        assert sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == digest.strip("`")
        assert licence
        assert package
