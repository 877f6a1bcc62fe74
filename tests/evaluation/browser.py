"""Opens pages in headless Chromium, without another package: it prints the page as it is."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=30000", "--dump-dom"),
)


def opened(page: Path, script: str = "", scheme: str = "light") -> tuple[str, list[str]]:
    """Return a page as it is after its own and another script, and its console's messages.

    The script may use `await`, and `seconds(n)` to wait in virtual time; schemes are light or dark.
    """
    assert BROWSER is not None
    text = page.read_text(encoding="utf-8")
    wait = "const seconds = (n) => new Promise((done) => setTimeout(done, 1000 * n));"
    more = f"<script>(async () => {{ {wait} await seconds(1); {script} }})();</script>"
    copy = page.with_suffix(".opened.html")
    copy.write_text(text.replace("</body>", f"{more}</body>"), encoding="utf-8")
    profile = page.parent / "profile"
    setting = f"--blink-settings=preferredColorScheme={('dark', 'light').index(scheme)}"
    done = subprocess.run(
        [BROWSER, *_OPTIONS, setting, f"--user-data-dir={profile}", copy.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    shutil.rmtree(profile, ignore_errors=True)
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)
