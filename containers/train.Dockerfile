# Trains a recipe, alone or as a pod of a TrainJob or RayJob (`flatout fleet manifest train`). No root; runs go to a volume at /runs.
#
#   python -m pip wheel --no-deps --wheel-dir dist .
#   docker build -f containers/train.Dockerfile -t registry.example.org/train:1 .
#   docker run --rm --gpus all --shm-size 8g -v "$PWD:/recipe:ro" -v runs:/runs registry.example.org/train:1 run /recipe/mine.yaml --runs /runs
#
# torch comes with its CUDA libraries from PyPI. For CPUs alone: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
FROM python:3.11.11-slim-bookworm AS build
ARG TORCH_INDEX=https://pypi.org/simple
ARG EXTRAS=cluster,export,sql,text,tune
WORKDIR /build
COPY constraints.txt dist/*.whl ./
RUN python -m venv /opt/flatout \
 && /opt/flatout/bin/python -m pip install --no-cache-dir --no-compile --index-url "$TORCH_INDEX" \
    --extra-index-url https://pypi.org/simple --constraint constraints.txt torch==2.13.0 \
 && /opt/flatout/bin/python -m pip install --no-cache-dir --no-compile --constraint constraints.txt \
    "$(echo ./flatout-*.whl)[$EXTRAS]"

FROM python:3.11.11-slim-bookworm
# torch.compile writes a little C++ and compiles it
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++=4:12.2.0-3 \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 flatout \
 && useradd --uid 10001 --gid 10001 --no-log-init --home-dir /tmp --shell /usr/sbin/nologin flatout \
 && install --directory --owner 10001 --group 10001 /runs
COPY --from=build /opt/flatout /opt/flatout
ENV PATH=/opt/flatout/bin:$PATH HOME=/tmp FLATOUT_CACHE=/runs/.cache PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /runs
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["flatout"]
CMD ["--help"]
