#!/bin/bash
set -e
cd /app
python3 - <<'END'
import json
users = {}
for name in ("old.jsonl", "new.jsonl"):
    for line in open(name):
        record = json.loads(line)
        if record["id"] not in users or record["updated"] >= users[record["id"]]["updated"]:
            users[record["id"]] = record
json.dump([users[i] for i in sorted(users)], open("users.json", "w"))
END
