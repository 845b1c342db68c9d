"""A page opened in headless Chromium, so that whatever it says to the console or asks of the network is trouble."""

import contextlib

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def opened(browser, path, *, width=1280, height=900, **context):
    """The page in a window; leaving fails on a console message, an error, or a request."""
    window = browser.new_context(viewport={"width": width, "height": height}, **context)
    tab = window.new_page()
    trouble = []
    tab.on("console", lambda said: trouble.append(said.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on(
        "request", lambda request: trouble.append(request.url) if request.url[:5] not in ("file:", "data:") else None
    )
    tab.goto(path.as_uri())
    yield tab
    assert trouble == []
    window.close()
