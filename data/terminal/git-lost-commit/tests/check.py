import os
import subprocess

os.environ |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_OPTIONAL_LOCKS": "0"}


def git(*words):
    command = ["git", "-C", "/app/site", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


body = git("cat-file", "commit", "refs/heads/rescue")
assert git("rev-parse", "refs/heads/rescue~1") == git("rev-parse", "refs/heads/main"), "rescue is not one commit ahead"
assert "author Ada <ada@example.org> 1735898400 +0000" in body and body.endswith("Prices"), "another commit"
assert git("cat-file", "blob", "refs/heads/rescue:pricing.md") == "# Prices\n\nApples: 3\nPears: 4"
assert git("cat-file", "commit", "refs/heads/main").endswith("About"), "main has moved"
