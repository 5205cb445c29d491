from hashlib import sha256
from pathlib import Path

sums = {
    "part0.txt": "6d7e1a7efd497c5946da1d05163964a67f85562d3c3b751c72a38e159d7d8365",
    "part1.txt": "7b456790c3b98ca3082b4313876f7fcab9e07fb6ae16e3f59556eb9a2fd60496",
    "part2.txt": "781516cfdf789e5877f6eea13d2dfd21214c4baef8c4fcdd0ebc3a9f8a805c69",
    "part3.txt": "6914b099f1d9549a181a2127fde7a24e40a8423f314f0664af356275abfa9a78",
    "part4.txt": "62c8bea77df4ee61486a601c1e1fc9f3487fa3776b5fec9f2a1312673cb23780",
    "part5.txt": "0e5f89104fb749f2e44fc7692c0568192dbd6aa66ef54fb7205ae17b6529a134"
}
found = {p.name: sha256(p.read_bytes()).hexdigest() for p in Path("/app/data").iterdir()}
assert found == sums
assert Path("/app/restored.txt").read_text().split() == ["part1.txt", "part4.txt"]
