# Serves a package on a CPU: flatout with the extras that answering needs, no compiler, no root, nothing written outside of /tmp.
#
#   python -m pip wheel --no-deps --wheel-dir dist .
#   docker build -f containers/serve.Dockerfile --build-arg PACKAGE=churn -t registry.example.org/churn:1 .
#   docker run --rm -p 8000:8000 --read-only --tmpfs /tmp registry.example.org/churn:1
#
# For GPUs: --build-arg TORCH_INDEX=https://pypi.org/simple
FROM python:3.11.11-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
COPY constraints.txt dist/*.whl ./
RUN python -m venv /opt/flatout \
 && /opt/flatout/bin/python -m pip install --no-cache-dir --no-compile --index-url "$TORCH_INDEX" \
    --extra-index-url https://pypi.org/simple --constraint constraints.txt torch==2.13.0 \
 && /opt/flatout/bin/python -m pip install --no-cache-dir --no-compile --constraint constraints.txt \
    "$(echo ./flatout-*.whl)[serve,export]"

FROM python:3.11.11-slim-bookworm
ARG PACKAGE=package
RUN groupadd --gid 10001 flatout && useradd --uid 10001 --gid 10001 --no-log-init --home-dir /tmp --shell /usr/sbin/nologin flatout
COPY --from=build /opt/flatout /opt/flatout
COPY --chown=0:0 ${PACKAGE} /package
ENV PATH=/opt/flatout/bin:$PATH HOME=/tmp FLATOUT_CACHE=/tmp/flatout PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/v2/health/live', timeout=4)"]
ENTRYPOINT ["flatout"]
CMD ["serve", "model=/package", "--host", "0.0.0.0", "--port", "8000"]
