import os
from pathlib import Path

root, seen = Path("/app/deploy"), set()
for path in [root, *root.rglob("*")]:
    wanted = 0o755 if path.is_dir() or path.suffix == ".sh" else 0o600 if path.parent.name == "keys" else 0o644
    assert not path.is_symlink() and os.stat(path).st_mode & 0o7777 == wanted, path
    seen |= {str(path.relative_to(root))} if path.is_file() else set()
files = {"run.sh", "README", "conf/app.conf", "conf/reload.sh", "keys/id.pem", "keys/rotate.txt", "data/my list.txt"}
assert seen == files, "files were added or removed"
assert (root / "conf/app.conf").read_text() == "port = 80\n"
