# SPDX-License-Identifier: MIT
"""./run serve for a test: $RUN is the program."""
import json
import os
import re
import signal
import subprocess
import time
import urllib.request


class Server:
    def __init__(self, *options):
        self.process = subprocess.Popen([os.environ["RUN"], "serve", "--port", "0", "--quiet", *options],
                                        stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        found = re.match(r"listening on (\S+)$", line)
        if not found:
            raise RuntimeError("the server does not start: " + line)
        self.url = found[1]

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def metric(self, name):
        found = re.search("^" + re.escape(name) + r" (\d+)$", self.get("/metrics"), re.M)
        return int(found[1]) if found else 0

    def model(self):
        return json.loads(self.get("/v1/models"))["data"][0]["id"]

    def idle(self, seconds=20):
        """True if no request runs or waits any more within that many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric("kvasir_running") + self.metric("kvasir_waiting") == 0:
                return True
            time.sleep(0.02)
        return False

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        self.process.stderr.close()
        return status
