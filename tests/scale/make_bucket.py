#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a bucket at AWS_ENDPOINT_URL with the credentials of the environment: `make_bucket.py NAME`."""

import datetime
import hashlib
import hmac
import os
import sys
import urllib.request


def sign(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def main() -> int:
    endpoint, region = os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_DEFAULT_REGION"]
    host, path = endpoint.partition("://")[2], f"/{sys.argv[1]}"
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    nothing = hashlib.sha256(b"").hexdigest()
    headers = {"host": host, "x-amz-content-sha256": nothing, "x-amz-date": date}
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    names = ";".join(sorted(headers))
    canonical = f"PUT\n{path}\n\n{lines}\n{names}\n{nothing}"
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
    for part in scope.split("/"):
        key = sign(key, part)
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    headers["Authorization"] = (f"AWS4-HMAC-SHA256 Credential={os.environ['AWS_ACCESS_KEY_ID']}/{scope}, "
                                f"SignedHeaders={names}, Signature={sign(key, text).hex()}")
    request = urllib.request.Request(endpoint + path, method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        print(f"bucket {sys.argv[1]}: {answer.status}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
