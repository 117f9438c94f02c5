// SPDX-License-Identifier: Apache-2.0
// A certificate made for a test, and a client that speaks TLS. Not thread-safe.
#ifndef RANKPROBE_WEB_HTTP_TESTING_TLS_PEER_H_
#define RANKPROBE_WEB_HTTP_TESTING_TLS_PEER_H_

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "web/http/testing/raw_client.h"
#include "web/http/tls_identity.h"

namespace rankprobe {

// Makes a self-signed certificate. `names` has OpenSSL's format:
// "DNS:node0,IP:127.0.0.1"; if empty, there are no names.
inline TlsIdentity MakeIdentity(const std::string& names) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(
      X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
      reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  if (!names.empty()) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(
        nullptr, nullptr, NID_subject_alt_name, names.c_str());
    EXPECT_NE(extension, nullptr) << names;
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }
  X509_sign(certificate, key, EVP_sha256());
  const auto text = [](auto write) {
    BIO* const memory = BIO_new(BIO_s_mem());
    write(memory);
    char* bytes = nullptr;
    const long length = BIO_get_mem_data(memory, &bytes);
    std::string pem(bytes, static_cast<size_t>(length));
    BIO_free(memory);
    return pem;
  };
  TlsIdentity identity;
  identity.cert_pem =
      text([&](BIO* to) { PEM_write_bio_X509(to, certificate); });
  identity.key_pem = text([&](BIO* to) {
    PEM_write_bio_PrivateKey(to, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  X509_free(certificate);
  EVP_PKEY_free(key);
  return identity;
}

// A client that does not check certificates. Waits at most a minute for bytes.
class TlsClient {
 public:
  // `version` is the newest version that it supports.
  explicit TlsClient(int port, int version = TLS1_3_VERSION)
      : context_(SSL_CTX_new(TLS_client_method())),
        ssl_((SSL_CTX_set_min_proto_version(context_, TLS1_VERSION),
              SSL_CTX_set_max_proto_version(context_, version),
              SSL_CTX_set_security_level(context_, 0), SSL_new(context_))),
        raw_(port) {
    SSL_set_fd(ssl_, raw_.fd());
    connected_ = SSL_connect(ssl_) == 1;
  }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }

  bool connected() const { return connected_; }
  bool Say(absl::string_view text) {
    return SSL_write(ssl_, text.data(), static_cast<int>(text.size())) ==
           static_cast<int>(text.size());
  }
  std::string Rest() {
    std::string heard;
    char bytes[16 << 10];
    for (int got = 0; (got = SSL_read(ssl_, bytes, sizeof bytes)) > 0;)
      heard.append(bytes, static_cast<size_t>(got));
    return heard;
  }

 private:
  SSL_CTX* const context_;
  SSL* const ssl_;
  RawClient raw_;
  bool connected_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_TESTING_TLS_PEER_H_
