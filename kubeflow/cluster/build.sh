#!/bin/sh
# Builds the image: sh build.sh cpu|gpu IMAGE [BASE@sha256:...], from the folder of headrace's source.
#
# The base is pinned by its digest: the one that you name, or the one that its registry has now, which
# is printed, so that the next build can name it.
set -eu
variant=${1:?cpu or gpu} image=${2:?the name of the image} base=${3:-}
case $variant in
  cpu) name=debian:12-slim ;;
  gpu) name=nvidia/cuda:12.2.2-cudnn8-runtime-ubuntu22.04 ;;
  *) echo "the variant is cpu or gpu, not $variant" >&2; exit 2 ;;
esac
[ -f uv.lock ] || { echo "run it in the folder of headrace's source: no uv.lock is here" >&2; exit 2; }
if [ -z "$base" ]; then
  docker pull --quiet "$name" > /dev/null
  base=$(docker image inspect --format '{{index .RepoDigests 0}}' "$name")
  echo "base: $base"
fi
case $base in
  *@sha256:*) ;;
  *) echo "$base is no digest; write NAME@sha256:..." >&2; exit 2 ;;
esac
here=$(dirname "$0")
DOCKER_BUILDKIT=1 docker build --build-arg BASE="$base" --tag "$image" --file "$here/Dockerfile" .
echo "push it, and name it by its digest, so that a changed image is no hit of the cache:"
echo "  docker push $image"
