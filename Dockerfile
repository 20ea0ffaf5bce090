# Bayplan's image: docker build -t bayplan:0.1.0 .
# For production, pin the base by digest: --build-arg PYTHON=3.13-slim@sha256:… (no digest stands here,
# because this file is checked without a registry; every Python package is pinned by hash).
ARG PYTHON=3.13-slim

# The wheel, built with the tools of requirements.lock.
FROM python:${PYTHON} AS wheel
WORKDIR /src
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation -w /wheels .

# An environment with what runs, and nothing else: not even pip.
FROM python:${PYTHON} AS environment
WORKDIR /src
COPY requirements-run.lock ./
RUN python -m venv --without-pip /opt/bayplan \
 && pip --python /opt/bayplan/bin/python install --no-cache-dir --require-hashes -r requirements-run.lock
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/bayplan/bin/python install --no-cache-dir --no-deps --no-index /wheels/*.whl \
 && /opt/bayplan/bin/bayplan run --check-config

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="Bayplan" \
      org.opencontainers.image.description="An accelerator scheduler for Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=environment /opt/bayplan /opt/bayplan
ENV PATH=/opt/bayplan/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /
USER 65532:65532
EXPOSE 10270
ENTRYPOINT ["bayplan"]
CMD ["run"]
