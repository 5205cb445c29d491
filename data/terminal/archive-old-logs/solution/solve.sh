#!/bin/bash
set -e
cd /app/logs
tar czf ../logs-2023.tar.gz *-2023-*.log
rm ./*-2023-*.log
