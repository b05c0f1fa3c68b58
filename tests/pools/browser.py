"""Chromium without a window, driven through the pipe of its debugging protocol."""
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

from harness import Failed, Skipped

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
           "--no-first-run", "--disable-background-networking", "--disable-component-update",
           "--remote-debugging-pipe")
# How long the browser may take to answer. Seconds.
PAGE_TIMEOUT = 30


def works(name):
    """Ubuntu's package holds only a script that asks for another one."""
    return shutil.which(name) and not subprocess.run(
        [name, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=PAGE_TIMEOUT).returncode


class Browser:
    """`with Browser(t) as browser: page = browser.open(path)`."""

    def __init__(self, t):
        program = next(filter(works, NAMES), None)
        if not program:
            raise Skipped("there is no Chromium")
        there, self.to = os.pipe()
        self.back, here = os.pipe()

        def pipes():
            # The browser reads descriptor 3 and writes descriptor 4.
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (there, here)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)
        self.log = open(t.work + "/chromium.log", "w+b")
        self.process = t.start([program, *OPTIONS, "--user-data-dir=" + t.disk + "/chromium"], env={"HOME": t.disk},
                               preexec_fn=pipes, close_fds=False, stdout=self.log, stderr=self.log)
        os.close(there)
        os.close(here)
        self.number, self.unread, self.events = 0, b"", []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.log.close()

    def message(self):
        """The next message of the browser."""
        until = time.monotonic() + PAGE_TIMEOUT
        while b"\0" not in self.unread:
            ready = select.select([self.back], [], [], max(0, until - time.monotonic()))[0]
            part = os.read(self.back, 1 << 20) if ready else b""
            if not part:
                self.log.seek(0)
                raise Failed("Chromium %s:\n%s" % (
                    "ended" if ready else "doesn't answer", self.log.read().decode("utf-8", "replace")[-2000:]))
            self.unread += part
        line, self.unread = self.unread.split(b"\0", 1)
        return json.loads(line)

    def ask(self, method, session=None, **parameters):
        """Has the browser do something: what it answers. Events that come before it are kept."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise Failed("%s: %s" % (method, message["error"]))
                return message["result"]
            self.events.append(message)

    def open(self, path, script=True, width=1280, scheme="file://"):
        return Opened(self, scheme + path, script, width)


class Opened:
    """A page in a tab of its own."""

    def __init__(self, browser, url, script, width):
        self.browser, self.url = browser, url
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Network", "Runtime", "Log"):
            self.ask(part + ".enable")
        self.ask("Emulation.setScriptExecutionDisabled", value=not script)
        self.wide(width)
        self.ask("Page.navigate", url=self.url)
        while not self.seen("Page.loadEventFired"):
            browser.events.append(browser.message())

    def ask(self, method, **parameters):
        return self.browser.ask(method, self.session, **parameters)

    def seen(self, *methods):
        return [e["params"] for e in self.browser.events
                if e.get("sessionId") == self.session and e["method"] in methods]

    def wide(self, width):
        """Shows the page on a screen of this width. Pixels."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression):
        done = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in done:
            raise Failed("%s: %s" % (expression, done["exceptionDetails"]))
        return done["result"].get("value")

    def source(self):
        """The document as it is now."""
        root = self.ask("DOM.getDocument", depth=0)["root"]["nodeId"]
        return self.ask("DOM.getOuterHTML", nodeId=root)["outerHTML"]

    def complaints(self):
        """What the console says, and what was asked of the network or of other files."""
        said = [json.dumps(e) for e in self.seen(
            "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")]
        asked = [e["request"]["url"] for e in self.seen("Network.requestWillBeSent")]
        return said + [url for url in asked if url != self.url and not url.startswith("data:")]
