/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials of both sides, from files that may change.
 *
 * A server's are fetched by gRPC itself: on_fetch runs on one of its threads when the port is made
 * and at each handshake, and answers "unchanged" while the files' stamps are those
 * of the last reading. A half-done change (new certificate, old key) is a configuration that gRPC
 * finds wrong and leaves; the second file's new stamp brings the next one. */
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/rpc_int.h"

enum { PEM_BYTES_MAX = 1 << 20 };

static const char SYSTEM[] = "system";

typedef struct pem {
    char *text;
    size_t len;
} pem;

static bool is_given(const char *path)
{
    return path != NULL && path[0] != '\0';
}

/* The file behind "system": Debian's, then Red Hat's. gRPC's own search ends the process when it
 * finds nothing. */
static const char *ca_path(const char *ca)
{
    static const char *const bundles[] = {"/etc/ssl/certs/ca-certificates.crt",
                                          "/etc/pki/tls/certs/ca-bundle.crt"};
    if (!is_given(ca) || strcmp(ca, SYSTEM) != 0) {
        return ca;
    }
    bt_file_stamp stamp;
    return bt_file_stamp_of(bundles[0], &stamp) == BT_OK ? bundles[0] : bundles[1];
}

static bt_status read_pem(const char *path, const char *what, pem *out, bt_error *err)
{
    if (!is_given(path)) {
        return BT_OK;
    }
    const bt_status status = bt_file_read_regular(path, PEM_BYTES_MAX, &out->text, &out->len, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "TLS %s", what);
        return status;
    }
    if (strstr(out->text, "-----BEGIN ") == NULL) {
        return bt_error_set(err, BT_EINVAL, "TLS %s: '%s' is no PEM file", what, path);
    }
    return BT_OK;
}

/* All files of one moment. */
typedef struct material {
    pem cert;
    pem key;
    pem ca;
} material;

static void free_material(material *m)
{
    bt_file_free(m->cert.text, m->cert.len);
    bt_file_free(m->key.text, m->key.len);
    bt_file_free(m->ca.text, m->ca.len);
}

static bt_status read_material(const bt_rpc_tls *tls, material *m, bt_error *err)
{
    bt_status status = read_pem(tls->cert, "certificate", &m->cert, err);
    if (status == BT_OK) {
        status = read_pem(tls->key, "key", &m->key, err);
    }
    if (status == BT_OK) {
        status = read_pem(ca_path(tls->ca), "authority", &m->ca, err);
    }
    return status;
}

bt_status bt_rpc_tls_check(const bt_rpc_tls *tls, bool is_server, bt_error *err)
{
    if (is_given(tls->cert) != is_given(tls->key)) {
        return bt_error_set(err, BT_EINVAL,
                            "TLS needs a certificate and its key, and %s is given alone",
                            is_given(tls->cert) ? "the certificate" : "the key");
    }
    if (is_server && !is_given(tls->cert)) {
        return bt_error_set(err, BT_EINVAL, "a server needs a certificate and its key for TLS");
    }
    if (!is_server && !is_given(tls->ca)) {
        return bt_error_set(err, BT_EINVAL,
                            "TLS needs the authority that is trusted: its "
                            "certificate's file, or 'system'");
    }
    material m = {.cert = {0}};
    const bt_status status = read_material(tls, &m, err);
    free_material(&m);
    return status;
}

/* ---- files ---- */

static bt_status copy(const char *text, const char **out)
{
    *out = is_given(text) ? strdup(text) : NULL;
    return is_given(text) && *out == NULL ? BT_ENOMEM : BT_OK;
}

bt_status bt_rpc_tls_files_init(bt_rpc_tls_files *files, const bt_rpc_tls *tls)
{
    *files = (bt_rpc_tls_files){.made = true};
    pthread_mutex_init(&files->lock, NULL);
    bt_status status = copy(tls->cert, &files->paths.cert);
    if (status == BT_OK) {
        status = copy(tls->key, &files->paths.key);
    }
    if (status == BT_OK) {
        status = copy(ca_path(tls->ca), &files->paths.ca);
    }
    if (status == BT_OK) {
        status = copy(tls->server_name, &files->paths.server_name);
    }
    return status;
}

void bt_rpc_tls_files_deinit(bt_rpc_tls_files *files)
{
    if (!files->made) {
        return;
    }
    BT_RPC_TAKE_OVER(files);
    pthread_mutex_destroy(&files->lock);
    free((char *)(uintptr_t)files->paths.cert);
    free((char *)(uintptr_t)files->paths.key);
    free((char *)(uintptr_t)files->paths.ca);
    free((char *)(uintptr_t)files->paths.server_name);
    *files = (bt_rpc_tls_files){0};
}

static bt_file_stamp stamp_of(const char *path)
{
    bt_file_stamp stamp = {0};
    if (path != NULL) {
        (void)bt_file_stamp_of(path, &stamp);
    }
    return stamp;
}

static bool is_unchanged(const char *path, const bt_file_stamp *stamp)
{
    const bt_file_stamp now = stamp_of(path);
    return bt_file_stamp_equal(&now, stamp);
}

bool bt_rpc_tls_files_changed(const bt_rpc_tls_files *files)
{
    return !is_unchanged(files->paths.cert, &files->cert) ||
           !is_unchanged(files->paths.key, &files->key) ||
           !is_unchanged(files->paths.ca, &files->ca);
}

/* The stamps first: what changes while we read is read again. */
static bt_status read_files(bt_rpc_tls_files *files, material *m, bt_error *err)
{
    files->cert = stamp_of(files->paths.cert);
    files->key = stamp_of(files->paths.key);
    files->ca = stamp_of(files->paths.ca);
    return read_material(&files->paths, m, err);
}

/* ---- server ---- */

static grpc_ssl_certificate_config_reload_status fetch(bt_rpc_tls_files *files,
                                                       grpc_ssl_server_certificate_config **config)
{
    if (!bt_rpc_tls_files_changed(files)) {
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    material m = {.cert = {0}};
    bt_error err = {{0}};
    if (read_files(files, &m, &err) != BT_OK) {
        free_material(&m);
        bt_log(BT_ERROR, "TLS files kept as they were: why=\"%s\"", err.text);
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    }
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = m.key.text, .cert_chain = m.cert.text};
    /* gRPC insists on an authority here, also where no client is asked for a certificate. */
    *config = grpc_ssl_server_certificate_config_create(m.ca.text != NULL ? m.ca.text : m.cert.text,
                                                        &pair, 1);
    free_material(&m);
    bt_log(BT_INFO, "TLS files read: cert=%s client_ca=%s", files->paths.cert,
           files->paths.ca != NULL ? files->paths.ca : "-");
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

static grpc_ssl_certificate_config_reload_status
on_fetch(void *ctx, grpc_ssl_server_certificate_config **config)
{
    bt_rpc_tls_files *files = ctx;
    BT_RPC_TAKE_OVER(files);
    pthread_mutex_lock(&files->lock);
    const grpc_ssl_certificate_config_reload_status status = fetch(files, config);
    pthread_mutex_unlock(&files->lock);
    BT_RPC_HAND_OVER(files);
    return status;
}

grpc_server_credentials *bt_rpc_tls_server_credentials(bt_rpc_tls_files *files)
{
    BT_RPC_HAND_OVER(files);
    const grpc_ssl_client_certificate_request_type request =
        files->paths.ca != NULL ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, on_fetch, files));
}

/* ---- client ---- */

grpc_channel_credentials *bt_rpc_tls_channel_credentials(bt_rpc_tls_files *files, bt_error *err)
{
    material m = {.cert = {0}};
    grpc_channel_credentials *credentials = NULL;
    if (read_files(files, &m, err) == BT_OK) {
        grpc_ssl_pem_key_cert_pair pair = {.private_key = m.key.text, .cert_chain = m.cert.text};
        credentials =
            grpc_ssl_credentials_create(m.ca.text, m.cert.text != NULL ? &pair : NULL, NULL, NULL);
    }
    free_material(&m);
    return credentials;
}
