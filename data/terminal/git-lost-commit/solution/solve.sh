#!/bin/bash
set -e
cd /app/site
git branch rescue 'HEAD@{1}'
