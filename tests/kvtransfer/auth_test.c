/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks on the KV plane: another key, none, a recorded session, frames that are reflected,
 * doubled or moved, and somebody between two honest workers who changes what they agree on
 * or what they send. Nobody without the key gets more than a refusal, and no part that was
 * changed on the way counts where parts are authenticated. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "common/crc32c.h"
#include "common/socket.h"
#include "tests/kvtransfer/kv_hand.h"

enum { BLOCKS = 6, TAG_AT = BT_FRAME_HEADER_BYTES - BT_FRAME_TAG_BYTES, SUM_AT = 36 };

static void begin_honest(kv_rig *rig)
{
    kv_rig_offer(rig, 1, 0, BLOCKS);
    kv_rig_announce_all(rig, 1, BLOCKS);
    kv_rig_complete(rig, 1, "token", false);
    kv_rig_open(rig, 1);
    kv_rig_pull(rig, 1, 0, BLOCKS, 0);
}

static void finish_honest(kv_rig *rig)
{
    assert_true(kv_rig_run_done(rig, 1));
    assert_int_equal(kv_rig_end_of(rig, 1)->n_done, 1);
    kv_rig_expect_moved(rig, 0, BLOCKS, 0);
    assert_true(kv_rig_run_released(rig, 1));
}

/* ---- another key ---- */

static void another_key_is_refused_with_the_cure(void **state)
{
    kv_rig rig;
    kv_rig_create(&rig, *(const bt_kv_transport *)*state);
    rig.sink_options.terms.cluster_key.bytes[31] ^= 0x80;
    kv_rig_start_source(&rig);
    kv_rig_start_sink(&rig);
    begin_honest(&rig);
    assert_true(kv_rig_run_done(&rig, 1));
    assert_int_equal(kv_rig_end_of(&rig, 1)->status, BT_EMISMATCH);
    assert_non_null(strstr(kv_rig_end_of(&rig, 1)->text, "key file"));
    kv_rig_expect_untouched(&rig);
    assert_int_equal(bt_kv_source_counters_get(rig.source)->handshakes_refused, 1);
    assert_int_equal(bt_kv_sink_counters_get(rig.sink)->handshakes_refused, 1);
    assert_int_equal(bt_kv_source_cancel(rig.source, kv_rig_name(1), BT_ECANCELLED, ""), BT_OK);
    assert_true(kv_rig_run_released(&rig, 1));
    kv_rig_destroy(&rig);
}

static void expect_refusal_alone(hand *h, bt_status status)
{
    bt_frame reply;
    assert_true(hand_next(h, &reply));
    assert_string_equal(bt_frame_type_name(reply.type), "REFUSE");
    assert_int_equal(reply.u.end.status, status);
    assert_int_equal(h->in_pos, h->in_len); /* and not a byte more */
    assert_true(hand_is_closed(h));
    hand_close(h);
}

static void a_hello_without_a_tag_gets_a_refusal_alone(void **state)
{
    kv_rig *rig = *state;
    begin_honest(rig);
    for (int i = 0; i < 3; i++) {
        hand h;
        hand_connect(rig, &h);
        h.unsigned_tags = i == 0;
        if (i == 1) {
            const bt_hash_key none = {{0}};
            bt_session_init(&h.session, BT_SESSION_SINK, &none);
        }
        bt_frame hello = hand_hello_frame(rig, &rig->sink_options.terms);
        uint8_t wire[BT_FRAME_BYTES_MAX];
        const size_t n = hand_seal(&h, &hello, wire);
        if (i == 2) {
            wire[TAG_AT + 15] ^= 1;
        }
        hand_write(rig, &h, wire, n);
        expect_refusal_alone(&h, BT_EMISMATCH);
    }
    finish_honest(rig);
}

/* What comes instead of HELLO or PROOF, with no tag or with any: closed without an answer. */
static void nothing_is_answered_before_the_proof(void **state)
{
    kv_rig *rig = *state;
    kv_rig_offer(rig, 2, 20, 4);
    kv_rig_announce_all(rig, 2, 4);
    const bt_frame frames[] = {
        {.type = BT_FRAME_PULL, .transfer = kv_rig_name(2), .u.pull = {.deadline_ms = 1000}},
        {.type = BT_FRAME_READ,
         .transfer = kv_rig_name(2),
         .u.read = {.rect = {0, 4, 0, RIG_LAYERS}}},
        {.type = BT_FRAME_RENEW},
        {.type = BT_FRAME_PROOF},
        {.type = BT_FRAME_END, .transfer = kv_rig_name(2), .u.end = {.text = ""}},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(frames); i++) {
        for (int after_hello = 0; after_hello < 2; after_hello++) {
            hand h;
            bt_frame reply;
            hand_connect(rig, &h);
            if (after_hello) {
                const bt_frame hello = hand_hello_frame(rig, &rig->sink_options.terms);
                hand_put(rig, &h, &hello);
                assert_true(hand_next(&h, &reply));
                assert_int_equal(reply.type, BT_FRAME_CHALLENGE);
            }
            h.unsigned_tags = true;
            hand_put(rig, &h, &frames[i]);
            if (after_hello) {
                expect_refusal_alone(&h, BT_EPERMISSION);
            } else {
                assert_false(hand_next(&h, &reply));
                assert_true(hand_is_closed(&h));
                hand_close(&h);
            }
        }
    }
    /* A CHALLENGE tells a repeated HELLO a nonce, and nothing about who is here. */
    assert_int_equal(bt_kv_source_counters_get(rig->source)->bytes_sent, 0);
    assert_int_equal(kv_rig_end_of(rig, 2)->n_released, 0);
    assert_int_equal(bt_kv_source_cancel(rig->source, kv_rig_name(2), BT_ECANCELLED, ""), BT_OK);
    assert_true(kv_rig_run_released(rig, 2));
}

/* ---- a recorded session ---- */

static void pull_by_hand(kv_rig *rig, hand *h, uint32_t i)
{
    bt_frame frame;
    const bt_frame pull = {
        .type = BT_FRAME_PULL, .transfer = kv_rig_name(i), .u.pull = {.deadline_ms = 1000}};
    const bt_frame read = {.type = BT_FRAME_READ,
                           .transfer = kv_rig_name(i),
                           .u.read = {.rect = {0, 4, 0, RIG_LAYERS}}};
    hand_connect(rig, h);
    hand_hello(rig, h);
    hand_put(rig, h, &pull);
    kv_rig_run_for(rig, 5);
    assert_true(hand_next(h, &frame));
    assert_int_equal(frame.type, BT_FRAME_OFFER);
    assert_true(hand_next(h, &frame));
    assert_int_equal(frame.type, BT_FRAME_ANNOUNCE);
    if (rig->transport == BT_KV_TRANSPORT_TCP) {
        hand_put(rig, h, &read);
        assert_true(hand_next(h, &frame));
        assert_int_equal(frame.type, BT_FRAME_DATA); /* it worked */
    }
}

static void a_recorded_pull_gets_nothing_when_it_is_replayed(void **state)
{
    kv_rig *rig = *state;
    hand *honest = bt_alloc_array(1, sizeof *honest);
    hand *thief = bt_alloc_array(1, sizeof *thief);
    assert_true(honest && thief);
    kv_rig_offer(rig, 2, 20, 4);
    kv_rig_announce_all(rig, 2, 4);
    pull_by_hand(rig, honest, 2);
    hand_close(honest);
    assert_true(kv_rig_run_released(rig, 2));
    /* The same transfer is there again, and nothing but the nonce of the source is new. */
    const uint64_t bytes_sent = bt_kv_source_counters_get(rig->source)->bytes_sent;
    kv_rig_offer(rig, 3, 20, 4);
    kv_rig_announce_all(rig, 3, 4);
    for (int in_one_go = 0; in_one_go < 2; in_one_go++) {
        bt_frame frame;
        hand_connect(rig, thief);
        for (size_t at = 0; at < honest->sent_len;) {
            const size_t step = in_one_go ? honest->sent_len : 100;
            const size_t n = bt_size_min(step, honest->sent_len - at);
            if (send(thief->fd, honest->sent + at, n, MSG_NOSIGNAL) < 0) {
                break; /* it was thrown out already */
            }
            kv_rig_run_for(rig, 2);
            at += n;
        }
        assert_true(hand_next(thief, &frame));
        assert_string_equal(bt_frame_type_name(frame.type), "CHALLENGE");
        expect_refusal_alone(thief, BT_EPERMISSION);
    }
    assert_int_equal(bt_kv_source_counters_get(rig->source)->bytes_sent, bytes_sent);
    assert_int_equal(kv_rig_end_of(rig, 3)->n_released, 0);
    assert_int_equal(bt_kv_source_cancel(rig->source, kv_rig_name(3), BT_ECANCELLED, ""), BT_OK);
    assert_true(kv_rig_run_released(rig, 3));
    free(honest);
    free(thief);
}

/* ---- frames of an open session ---- */

enum { REFLECTED, DOUBLED, MOVED, SKIPPED, ALTERED, N_TRICKS };

static void frames_that_are_played_with_close_the_connection(void **state)
{
    kv_rig *rig = *state;
    const bt_frame renew = {.type = BT_FRAME_RENEW};
    for (int trick = 0; trick < N_TRICKS; trick++) {
        hand *h = bt_alloc_array(1, sizeof *h);
        uint8_t first[BT_FRAME_BYTES_MAX];
        uint8_t second[BT_FRAME_BYTES_MAX];
        bt_frame frame;
        assert_non_null(h);
        hand_connect(rig, h);
        hand_hello(rig, h);
        const size_t n = hand_seal(h, &renew, first);
        (void)hand_seal(h, &renew, second);
        switch (trick) {
        case REFLECTED: /* what the source sent under the counter that is due */
            hand_write(rig, h, first, n);
            assert_true(hand_next(h, &frame));
            assert_int_equal(frame.type, BT_FRAME_RENEW);
            memcpy(second, h->in, n);
            second[8] = 3; /* the counter that is due here */
            hand_write(rig, h, second, n);
            break;
        case DOUBLED:
            hand_write(rig, h, first, n);
            hand_write(rig, h, first, n);
            break;
        case MOVED:
            hand_write(rig, h, second, n);
            break;
        case SKIPPED:
            second[8] = first[8]; /* its counter is made to fit */
            hand_write(rig, h, second, n);
            break;
        default:
            first[20] ^= 1; /* of the transfer's name */
            hand_write(rig, h, first, n);
            break;
        }
        assert_true(hand_is_closed(h));
        hand_close(h);
        assert_int_equal(bt_kv_source_counters_get(rig->source)->frames_rejected, trick + 1);
        free(h);
    }
}

/* ---- between two honest workers ---- */

typedef struct relay relay;
typedef void (*relay_fn)(relay *r, uint8_t *frame, size_t n, uint8_t *parts, size_t n_parts);

struct relay {
    kv_rig *rig;
    bt_socket_address source;
    int listen_fd;
    int fds[2]; /* to the sink, to the source */
    uint8_t in[2][1 << 18];
    size_t in_len[2];
    size_t n_frames[2]; /* passed on */
    relay_fn change[2]; /* what came from the sink, from the source; NULL: nothing */
    bool changed;
    uint64_t seed; /* of change_anything */
};

static relay *relay_create(kv_rig *rig)
{
    relay *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->rig = rig;
    r->fds[0] = r->fds[1] = -1;
    assert_int_equal(bt_socket_resolve(rig->peer.tcp, false, &r->source, NULL), BT_OK);
    r->listen_fd = hand_listen(rig);
    return r;
}

static void relay_destroy(relay *r)
{
    bt_socket_close(r->fds[0]);
    bt_socket_close(r->fds[1]);
    bt_socket_close(r->listen_fd);
    free(r);
}

/* A whole frame and the parts behind it, or nothing yet. */
static bool pass_one(relay *r, int from)
{
    bt_frame_header header;
    uint8_t *in = r->in[from];
    if (r->in_len[from] < BT_FRAME_HEADER_BYTES ||
        bt_frame_decode_header(in, &header, NULL) != BT_OK) {
        return false;
    }
    const size_t n = BT_FRAME_HEADER_BYTES + header.body_bytes;
    if (r->in_len[from] < n) {
        return false;
    }
    const size_t n_parts =
        header.type == BT_FRAME_DATA ? bt_frame_u32(in + BT_FRAME_HEADER_BYTES, 1) : 0;
    if (r->in_len[from] < n + n_parts) {
        return false;
    }
    if (r->change[from]) {
        r->change[from](r, in, n, in + n, n_parts);
    }
    (void)!send(r->fds[1 - from], in, n + n_parts, MSG_NOSIGNAL);
    r->in_len[from] -= n + n_parts;
    memmove(in, in + n + n_parts, r->in_len[from]);
    r->n_frames[from]++;
    return true;
}

static void relay_turn(relay *r)
{
    if (r->fds[0] < 0) {
        if (bt_socket_accept(r->listen_fd, &r->fds[0]) != BT_OK) {
            return;
        }
        assert_int_equal(bt_socket_connect(&r->source, &r->fds[1], NULL), BT_OK);
    }
    for (int from = 0; from < 2; from++) {
        const ssize_t n = recv(r->fds[from], r->in[from] + r->in_len[from],
                               sizeof r->in[from] - r->in_len[from], MSG_DONTWAIT);
        r->in_len[from] += n > 0 ? (size_t)n : 0;
        while (pass_one(r, from)) {
        }
        if (n == 0) {
            (void)shutdown(r->fds[1 - from], SHUT_RDWR);
        }
    }
}

static bool turn_until_end(kv_rig *rig, void *ctx)
{
    relay_turn(ctx);
    return kv_rig_end_of(rig, 1)->n_done + kv_rig_end_of(rig, 1)->n_failed > 0;
}

static bool turn_until_release(kv_rig *rig, void *ctx)
{
    relay_turn(ctx);
    return kv_rig_end_of(rig, 1)->n_released > 0;
}

static void repair_sum(uint8_t *frame, size_t n)
{
    const uint32_t sum = bt_crc32c(bt_crc32c(0, frame, SUM_AT), frame + BT_FRAME_HEADER_BYTES,
                                   n - BT_FRAME_HEADER_BYTES);
    for (size_t i = 0; i < 4; i++) {
        frame[SUM_AT + i] = (uint8_t)(sum >> (8 * i));
    }
}

/* The sink's wish is in a HELLO's body at 56, the source's choice in a CHALLENGE's at 0. */
static void ask_for_less(relay *r, uint8_t *frame, size_t n, uint8_t *parts, size_t n_parts)
{
    (void)parts;
    (void)n_parts;
    if (r->n_frames[0] == 0) {
        uint8_t *wish = frame + BT_FRAME_HEADER_BYTES + 56;
        assert_int_equal(wish[0], BT_KV_AUTH_FULL);
        wish[0] = BT_KV_AUTH_FRAMES;
        repair_sum(frame, n);
        r->changed = true;
    }
}

static void choose_less(relay *r, uint8_t *frame, size_t n, uint8_t *parts, size_t n_parts)
{
    (void)parts;
    (void)n_parts;
    if (r->n_frames[1] == 0) {
        uint8_t *choice = frame + BT_FRAME_HEADER_BYTES;
        assert_int_equal(choice[0], BT_KV_AUTH_FULL);
        choice[0] = BT_KV_AUTH_FRAMES;
        repair_sum(frame, n);
        r->changed = true;
    }
}

/* Adds to bytes [100, 108) what leaves a CRC32C as it is: four bytes, and the state that they
 * bring it to. */
static void keep_crc(relay *r, uint8_t *frame, size_t n, uint8_t *parts, size_t n_parts)
{
    (void)frame;
    (void)n;
    if (n_parts < 1024 || r->changed) {
        return;
    }
    static const uint8_t delta[4] = {0x80, 1, 2, 3};
    static const uint8_t zeros[4];
    const uint32_t state = bt_crc32c(0, delta, 4) ^ bt_crc32c(0, zeros, 4);
    const uint32_t before = bt_crc32c(0, parts, 1024);
    for (size_t i = 0; i < 4; i++) {
        parts[100 + i] ^= delta[i];
        parts[104 + i] ^= (uint8_t)(state >> (8 * i));
    }
    assert_int_equal(bt_crc32c(0, parts, 1024), before);
    r->changed = true;
}

static void flip_a_bit(relay *r, uint8_t *frame, size_t n, uint8_t *parts, size_t n_parts)
{
    (void)frame;
    (void)n;
    if (n_parts > 0 && !r->changed) {
        parts[n_parts - 1] ^= 1;
        r->changed = true;
    }
}

/* One byte of a frame, or of the parts behind it, in the n-th frame that this way comes; the
 * frame's checksum fits again in half of the cases. */
static void change_anything(relay *r, uint8_t *frame, size_t n, uint8_t *parts, size_t n_parts)
{
    const int from = frame == r->in[0] ? 0 : 1;
    if (r->changed || r->n_frames[from] != r->seed % 8) {
        return;
    }
    const size_t at = (size_t)(r->seed >> 8) % (n + n_parts);
    uint8_t *byte = at < n ? &frame[at] : &parts[at - n];
    *byte ^= (uint8_t)(1 + (r->seed >> 32) % 255);
    if ((r->seed >> 48) % 2 == 0) {
        repair_sum(frame, n);
    }
    r->changed = true;
}

/* Runs one pull through a relay; returns how it ended. */
static kv_rig_end pull_through_seeded(bt_kv_auth source_auth, bt_kv_auth sink_auth,
                                      relay_fn from_sink, relay_fn from_source, uint64_t seed,
                                      bool *is_right)
{
    kv_rig rig;
    kv_rig_create(&rig, BT_KV_TRANSPORT_TCP);
    rig.source_options.auth = source_auth;
    rig.sink_options.auth = sink_auth;
    kv_rig_start_source(&rig);
    kv_rig_start_sink(&rig);
    relay *r = relay_create(&rig);
    r->seed = seed;
    r->change[0] = from_sink;
    r->change[1] = from_source;
    begin_honest(&rig);
    assert_true(kv_rig_run(&rig, turn_until_end, r));
    assert_true(seed != 0 || r->changed == (from_sink || from_source));
    const kv_rig_end end = *kv_rig_end_of(&rig, 1);
    *is_right = memcmp(kv_rig_sink_block(&rig, 0, 0), kv_rig_source_block(&rig, 0, 0),
                       rig.sink_options.terms.layout.block_bytes) == 0;
    if (end.n_done == 0) {
        (void)bt_kv_source_cancel(rig.source, kv_rig_name(1), BT_ECANCELLED, "");
    }
    assert_true(kv_rig_run(&rig, turn_until_release, r));
    relay_destroy(r);
    kv_rig_destroy(&rig);
    return end;
}

static kv_rig_end pull_through(bt_kv_auth source_auth, bt_kv_auth sink_auth, relay_fn from_sink,
                               relay_fn from_source, bool *is_right)
{
    return pull_through_seeded(source_auth, sink_auth, from_sink, from_source, 0, is_right);
}

/* Under FULL no byte between them can be changed without being noticed. */
static void no_changed_byte_passes_under_full(void **state)
{
    (void)state;
    uint64_t seed = 4;
    int n_failed = 0;
    for (int i = 0; i < 64; i++) {
        bool is_right;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const kv_rig_end end = pull_through_seeded(
            BT_KV_AUTH_FULL, BT_KV_AUTH_FULL, i % 2 == 0 ? change_anything : NULL,
            i % 2 == 1 ? change_anything : NULL, seed >> 8, &is_right);
        assert_true(end.n_failed == 1 || is_right);
        n_failed += end.n_failed;
    }
    assert_true(n_failed > 32); /* the last frames come after the end, or never */
}

static void the_stricter_wish_holds(void **state)
{
    (void)state;
    static const bt_kv_auth wishes[] = {BT_KV_AUTH_AUTO, BT_KV_AUTH_FRAMES, BT_KV_AUTH_FULL};
    bool is_right;
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 3; k++) {
            kv_rig_end end = pull_through(wishes[i], wishes[k], NULL, NULL, &is_right);
            assert_int_equal(end.n_done, 1);
            assert_true(is_right);
            /* on a loopback address AUTO is FRAMES */
            const bool full = wishes[i] == BT_KV_AUTH_FULL || wishes[k] == BT_KV_AUTH_FULL;
            end = pull_through(wishes[i], wishes[k], NULL, keep_crc, &is_right);
            assert_int_equal(end.n_done, full ? 0 : 1);
        }
    }
}

static void nobody_between_them_can_lower_what_they_agree_on(void **state)
{
    (void)state;
    bool is_right;
    kv_rig_end end =
        pull_through(BT_KV_AUTH_FRAMES, BT_KV_AUTH_FULL, ask_for_less, NULL, &is_right);
    assert_int_equal(end.status, BT_EMISMATCH);
    end = pull_through(BT_KV_AUTH_FULL, BT_KV_AUTH_FRAMES, NULL, choose_less, &is_right);
    assert_int_equal(end.status, BT_EMISMATCH);
    end = pull_through(BT_KV_AUTH_FULL, BT_KV_AUTH_FULL, NULL, choose_less, &is_right);
    assert_int_equal(end.status, BT_EMISMATCH);
}

/* Checksums don't stop who can compute them; tags do. */
static void parts_that_are_changed_on_the_way_do_not_count_under_full(void **state)
{
    (void)state;
    bool is_right;
    kv_rig_end end = pull_through(BT_KV_AUTH_FRAMES, BT_KV_AUTH_FRAMES, NULL, keep_crc, &is_right);
    assert_int_equal(end.n_done, 1);
    assert_false(is_right); /* what FRAMES does not promise */
    end = pull_through(BT_KV_AUTH_FRAMES, BT_KV_AUTH_FRAMES, NULL, flip_a_bit, &is_right);
    assert_int_equal(end.n_done, 1);
    assert_true(is_right); /* by its checksum, and a second READ */
    assert_int_equal(end.stats.parts_retried, 1);
    static const relay_fn changes[] = {keep_crc, flip_a_bit};
    for (size_t i = 0; i < 2; i++) {
        end = pull_through(BT_KV_AUTH_FULL, BT_KV_AUTH_AUTO, NULL, changes[i], &is_right);
        assert_int_equal(end.n_failed, 1);
        assert_int_equal(end.status, BT_EPROTOCOL);
        assert_non_null(strstr(end.text, "changed on the way"));
    }
}

/* ---- the source that a sink reaches ---- */

static void a_source_without_the_key_is_found_out(void **state)
{
    kv_rig *rig = *state;
    for (uint32_t i = 0; i < 3; i++) {
        const int listen_fd = hand_listen(rig);
        hand *h = bt_alloc_array(1, sizeof *h);
        bt_frame frame;
        assert_non_null(h);
        kv_rig_open(rig, i);
        kv_rig_pull(rig, i, 4 * i, 2, 0);
        hand_accept(rig, listen_fd, h);
        assert_true(hand_next(h, &frame));
        assert_int_equal(frame.type, BT_FRAME_HELLO);
        if (i == 0) { /* has another key */
            const bt_hash_key none = {{0}};
            bt_session_init(&h->session, BT_SESSION_SOURCE, &none);
            h->session.heard_hello = true;
        }
        h->unsigned_tags = i == 1;
        const bt_frame challenge = {
            .type = BT_FRAME_CHALLENGE,
            .u.challenge = {.auth = BT_KV_AUTH_FRAMES,
                            .incarnation = rig->source_options.incarnation},
        };
        if (i == 2) { /* sends back what it heard */
            hand_write(rig, h, h->in, h->in_pos);
        } else {
            hand_put(rig, h, &challenge);
        }
        assert_true(kv_rig_run_done(rig, i));
        assert_int_equal(kv_rig_end_of(rig, i)->status, i == 2 ? BT_EPROTOCOL : BT_EMISMATCH);
        assert_false(hand_next(h, &frame)); /* no PROOF, no PULL */
        hand_close(h);
        bt_socket_close(listen_fd);
        free(h);
    }
    kv_rig_expect_untouched(rig);
}

/* A REFUSE is not signed: it can't say more than that the handshake is over. */
static void a_forged_refusal_gives_no_verdict(void **state)
{
    kv_rig *rig = *state;
    static const bt_status said[] = {BT_EMISMATCH, BT_EDEADLINE, BT_ECANCELLED, BT_EINVAL};
    for (uint32_t i = 0; i < BT_ARRAY_LEN(said); i++) {
        const int listen_fd = hand_listen(rig);
        hand *h = bt_alloc_array(1, sizeof *h);
        bt_frame frame;
        assert_non_null(h);
        kv_rig_open(rig, i);
        hand_accept(rig, listen_fd, h);
        assert_true(hand_next(h, &frame));
        const bt_frame refuse = {
            .type = BT_FRAME_REFUSE,
            .u.end = {.status = said[i], .text = "\x1b[2Jno\n", .text_bytes = 7}};
        hand_put(rig, h, &refuse);
        assert_true(kv_rig_run_done(rig, i));
        assert_int_equal(kv_rig_end_of(rig, i)->status,
                         said[i] == BT_EMISMATCH ? BT_EMISMATCH : BT_EPROTOCOL);
        assert_null(strpbrk(kv_rig_end_of(rig, i)->text, "\x1b\n"));
        hand_close(h);
        bt_socket_close(listen_fd);
        free(h);
    }
}

/* ---- unix sockets ---- */

/* Connects as another user and reads; returns how many bytes came, -1: could not connect. */
static int read_as_nobody(kv_rig *rig, const char *text)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bt_socket_address address;
        int fd = -1;
        if (setuid(65534) != 0 || bt_socket_resolve(text, false, &address, NULL) != BT_OK ||
            bt_socket_connect(&address, &fd, NULL) != BT_OK) {
            _exit(255);
        }
        char bytes[100];
        (void)!send(fd, "hello", 5, MSG_NOSIGNAL);
        ssize_t n;
        (void)fcntl(fd, F_SETFL, 0);
        int sum = 0;
        while ((n = read(fd, bytes, sizeof bytes)) > 0) {
            sum += (int)n;
        }
        _exit(sum > 250 ? 250 : sum);
    }
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        kv_rig_run_for(rig, 1);
    }
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) == 255 ? -1 : WEXITSTATUS(status);
}

static void another_user_gets_nothing_over_unix_sockets(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    for (int with_file = 0; with_file < 2; with_file++) {
        kv_rig rig;
        char text[128];
        char path[64];
        kv_rig_create(&rig, BT_KV_TRANSPORT_SHM);
        (void)snprintf(path, sizeof path, "/tmp/baton-kv-auth-%d", (int)getpid());
        if (with_file) {
            rig.source_options.shm_address = path;
        }
        kv_rig_start_source(&rig);
        kv_rig_start_sink(&rig);
        (void)snprintf(text, sizeof text, "unix:%s", rig.peer.shm);
        /* By its mode the file is out of reach; an abstract name is not, but nobody answers. */
        assert_int_equal(read_as_nobody(&rig, text), with_file ? -1 : 0);
        assert_int_equal(bt_kv_source_counters_get(rig.source)->handshakes_refused, !with_file);
        if (with_file) {
            assert_int_equal(chmod(path, 0666), 0); /* even if somebody opens it */
            assert_int_equal(read_as_nobody(&rig, text), 0);
            assert_int_equal(bt_kv_source_counters_get(rig.source)->handshakes_refused, 1);
        }
        begin_honest(&rig);
        finish_honest(&rig);
        kv_rig_destroy(&rig);
        (void)unlink(path);
    }
}

static const bt_kv_transport SHM = BT_KV_TRANSPORT_SHM;
static const bt_kv_transport TCP = BT_KV_TRANSPORT_TCP;
static const bt_kv_transport LOOPBACK = BT_KV_TRANSPORT_LOOPBACK;

/* Over loopback there is no socket to play on: session_test and mutation_test do. */
#define ON_RIG(test) KV_RIG_TEST(test, shm), KV_RIG_TEST(test, tcp)
#define CASE_ON(test, transport)                                                                   \
    {                                                                                              \
#test "/" #transport, test, NULL, NULL, (void *)(uintptr_t)&transport                      \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_ON(another_key_is_refused_with_the_cure, SHM),
        CASE_ON(another_key_is_refused_with_the_cure, TCP),
        CASE_ON(another_key_is_refused_with_the_cure, LOOPBACK),
        ON_RIG(a_hello_without_a_tag_gets_a_refusal_alone),
        ON_RIG(nothing_is_answered_before_the_proof),
        ON_RIG(a_recorded_pull_gets_nothing_when_it_is_replayed),
        ON_RIG(frames_that_are_played_with_close_the_connection),
        cmocka_unit_test(no_changed_byte_passes_under_full),
        cmocka_unit_test(the_stricter_wish_holds),
        cmocka_unit_test(nobody_between_them_can_lower_what_they_agree_on),
        cmocka_unit_test(parts_that_are_changed_on_the_way_do_not_count_under_full),
        ON_RIG(a_source_without_the_key_is_found_out),
        ON_RIG(a_forged_refusal_gives_no_verdict),
        cmocka_unit_test(another_user_gets_nothing_over_unix_sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
