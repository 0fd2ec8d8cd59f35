"""TLS certificates for tests, made by openssl."""

import shutil
import subprocess
from pathlib import Path


def certificate(folder: Path, name: str, signed_by: str = "") -> None:
    """Make `<name>.pem` and `<name>.key`. Another certificate signs it, or it signs itself."""
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", f"/CN={name}", "-days", "2", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
    if signed_by:
        made += ["-CA", f"{signed_by}.pem", "-CAkey", f"{signed_by}.key", "-addext", "subjectAltName=IP:127.0.0.1"]
        made += ["-addext", "basicConstraints=critical,CA:FALSE"]
    else:
        made += ["-addext", "keyUsage=critical,keyCertSign"]  # Python 3.13 trusts no authority without this extension
    subprocess.run(made, cwd=folder, check=True, capture_output=True)


def has_openssl() -> bool:
    """Return True if there is an openssl that can sign a certificate with another."""
    found = shutil.which("openssl")
    return (
        found is not None and "OpenSSL 3" in subprocess.run([found, "version"], capture_output=True, text=True).stdout
    )
