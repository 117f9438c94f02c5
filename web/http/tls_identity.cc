// SPDX-License-Identifier: Apache-2.0
#include "web/http/tls_identity.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/system/error_code.hpp>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

namespace asio = boost::asio;

template <auto free>
struct Freed {
  template <typename T>
  void operator()(T* what) const {
    free(what);
  }
};

absl::string_view TextOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

// Returns "" if the bytes are not an address.
std::string AddressOf(absl::string_view bytes) {
  if (bytes.size() == 4) {
    asio::ip::address_v4::bytes_type four;
    std::memcpy(four.data(), bytes.data(), four.size());
    return asio::ip::make_address_v4(four).to_string();
  }
  if (bytes.size() == 16) {
    asio::ip::address_v6::bytes_type sixteen;
    std::memcpy(sixteen.data(), bytes.data(), sixteen.size());
    return absl::StrCat("[", asio::ip::make_address_v6(sixteen).to_string(),
                        "]");
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<asio::ssl::context>> MakeTlsContext(
    const TlsIdentity& identity) {
  auto context =
      std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(context->native_handle(),
                      SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  // OpenSSL would ask for the pass phrase on the terminal.
  boost::system::error_code error;
  context->set_password_callback(
      [](size_t, asio::ssl::context::password_purpose) {
        return std::string();
      },
      error);
  if (!error) {
    context->use_certificate_chain(
        asio::buffer(identity.cert_pem.data(), identity.cert_pem.size()),
        error);
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate cannot be used: ", error.message()));
  }
  context->use_private_key(
      asio::buffer(identity.key_pem.data(), identity.key_pem.size()),
      asio::ssl::context::pem, error);
  if (error || SSL_CTX_check_private_key(context->native_handle()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the key cannot be used with the certificate",
                     error ? ": " : "", error ? error.message() : ""));
  }
  return context;
}

absl::StatusOr<std::vector<std::string>> NamesOfCertificate(
    const std::string& cert_pem) {
  const std::unique_ptr<BIO, Freed<&BIO_free>> source(
      BIO_new_mem_buf(cert_pem.data(), static_cast<int>(cert_pem.size())));
  const std::unique_ptr<X509, Freed<&X509_free>> certificate(
      PEM_read_bio_X509(source.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr)
    return absl::InvalidArgumentError("the certificate cannot be read");
  std::vector<std::string> names;
  const std::unique_ptr<GENERAL_NAMES, Freed<&GENERAL_NAMES_free>> found(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(
          certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  if (found == nullptr) return names;
  for (int i = 0; i < sk_GENERAL_NAME_num(found.get()); ++i) {
    const GENERAL_NAME* const one = sk_GENERAL_NAME_value(found.get(), i);
    std::string name;
    if (one->type == GEN_DNS) {
      name = absl::AsciiStrToLower(TextOf(one->d.dNSName));
    } else if (one->type == GEN_IPADD) {
      name = AddressOf(TextOf(one->d.iPAddress));
    }
    if (!name.empty() && !absl::StrContains(name, "*"))
      names.push_back(std::move(name));
  }
  return names;
}

}  // namespace rankprobe
