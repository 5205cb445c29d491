#!/bin/bash
cd /app/data
for name in $(sha256sum -c ../SHA256SUMS 2>/dev/null | sed -n 's/: FAILED.*//p'); do
  sum=$(awk -v n="$name" '$2 == n { print $1 }' ../SHA256SUMS)
  for copy in ../backup/*/"$name"; do
    if [ "$(sha256sum < "$copy" | cut -d' ' -f1)" = "$sum" ]; then cp "$copy" "$name"; fi
  done
  echo "$name"
done | sort > ../restored.txt
