import tarfile
from pathlib import Path

old = {"web-2023-11.log": "web 2023 11 1475\n", "web-2023-12.log": "web 2023 12 7554\n", "db-2023-11.log": "db 2023 11 2320\n", "db-2023-12.log": "db 2023 12 1810\n"}
with tarfile.open("/app/logs-2023.tar.gz", "r:gz") as tar:
    members = {m.name: tar.extractfile(m).read(100).decode() for m in tar if m.isreg()}
    assert len(tar.getmembers()) == len(old), "other members"
assert members == old
left = sorted(p.name for p in Path("/app/logs").iterdir())
assert left == ["db-2024-01.log", "db-2024-02.log", "web-2024-01.log", "web-2024-02.log"]
