# rankprobe on Debian 12: collector, CLI, C++ trainer and Python package.
#   docker build -t rankprobe .
# The build stage runs the same scripts as a machine without Docker.
FROM debian:12 AS build
WORKDIR /src
COPY deploy/packages.txt deploy/install_packages.sh deploy/
COPY deploy/lib/common.sh deploy/lib/
RUN ./deploy/install_packages.sh
COPY . .
# A compiler cache lent to the build (tests/containers/podman.sh) tells languages apart.
ENV LANG=C.UTF-8
RUN bash -c 'set -euo pipefail; source deploy/lib/common.sh; \
    build rankprobed rankprobe train_transformer rankprobe_native rankprobe_analysis_native'

# The runtime needs the shared libraries only.
FROM debian:12 AS runtime
RUN apt-get update -q \
    && apt-get install -y -q --no-install-recommends libgrpc++1.51 libgrpc29 libprotobuf32 \
       libabsl20220623 libarchive13 libcurl4 libleveldb1d libtorch1.13 libopenblas0-pthread libsqlite3-0 libminizip1 libxlsxwriter4 \
       libdeflate0 libexpat1 libxxhash0 libyaml-cpp0.7 libzstd1 python3 python3-torch python3-numpy \
       python3-openpyxl python3-pandas python3-yaml \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 999 --user-group --create-home rankprobe \
    && install -d -o rankprobe -g rankprobe -m 0750 /var/lib/rankprobe
COPY --from=build /src/build/release/bin/rankprobed /src/build/release/bin/rankprobe \
     /src/build/release/bin/train_transformer /usr/local/bin/
COPY --from=build /src/build/release/python/rankprobe /usr/local/lib/python3.11/dist-packages/rankprobe
COPY examples/python /usr/local/share/rankprobe/examples
COPY deploy/docker/ /usr/local/share/rankprobe/
# A library that the list above lacks shows here, not at the first start.
RUN rankprobed --version && rankprobe --version && train_transformer --help >/dev/null \
    && python3 -c 'import rankprobe.analysis, rankprobe.pytorch'
USER rankprobe
VOLUME /var/lib/rankprobe
EXPOSE 7411
# Inside a container loopback is of no use: listening beyond it must be spelled out.
CMD ["rankprobed", "--listen", "0.0.0.0:7411", "--insecure", "--data-dir", "/var/lib/rankprobe"]
