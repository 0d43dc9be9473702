# One image for every role: the command line, the HCA daemon, the subnet manager and the ranks.
#
#   docker build -t fauxrdma .
#   docker build -t fauxrdma --build-arg BASE_IMAGE=python:3.12-slim --build-arg EXTRAS= .    # without torch
#   docker run --rm fauxrdma compare seed-rail8 fat-tree --nodes 2 --gpus 2 -- examples/train_digits.py
#
# Without a network at build time, put wheels into wheelhouse/ and add --build-arg PIP_ARGS=--no-index.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
ARG EXTRAS=torch
ARG PIP_ARGS=
WORKDIR /src
# The glob lets wheelhouse/ be absent: COPY needs one match, and constraints.txt is always there.
COPY constraints.txt wheelhous[e]/*.whl /wheelhouse/
COPY pyproject.toml README.md ./
COPY fauxrdma fauxrdma
COPY daemons daemons
RUN python3 -m venv /opt/fauxrdma \
 && /opt/fauxrdma/bin/pip install --no-cache-dir --quiet --disable-pip-version-check ${PIP_ARGS} \
        --find-links /wheelhouse -c /wheelhouse/constraints.txt \
        "/src${EXTRAS:+[${EXTRAS}]}" scikit-learn

FROM ${BASE_IMAGE}
RUN useradd --create-home --uid 1000 fauxrdma
COPY --from=build /opt/fauxrdma /opt/fauxrdma
COPY --chown=fauxrdma examples /home/fauxrdma/examples
ENV PATH=/opt/fauxrdma/bin:${PATH} PYTHONUNBUFFERED=1
USER fauxrdma
WORKDIR /home/fauxrdma
ENTRYPOINT ["fauxrdma"]
CMD ["--help"]
