/* iov.hpp: Forebay's verbs for C++20. A header above iov.h: handles that close themselves, spans, exceptions with error codes.
 *
 *     iov::session session("pool:default");
 *     iov::workspace workspace = session.create_workspace("campaign");
 *     iov::batch batch(session);
 *     iov::collection field = workspace.create("pressure.3", {.meta = {{"step", "3"}}}, batch);
 *     iov::request written = batch.write(field, std::as_bytes(std::span(pressure)), 0);
 *     batch.start();
 *     compute_next_step();
 *     batch.wait();
 *     written.result();              // throws iov::error if it wasn't done
 *
 * What fails throws iov::error, a std::system_error: code() is an errno in std::generic_category(), what() ends with the
 * sentence of iov_error(). Where docs/verbs.md has rules for threads, forks and buffers, they hold here.
 */
#ifndef FOREBAY_IOV_HPP
#define FOREBAY_IOV_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "iov.h"

namespace iov {

/* Why a verb failed. */
class error : public std::system_error {
public:
    explicit error(int64_t returned)
        : std::system_error(static_cast<int>(-returned), std::generic_category(), iov_error())
    {
    }
};

namespace detail {

inline int64_t check(int64_t returned)
{
    if (returned < 0)
        throw error(returned);
    return returned;
}

/* A handle with the function that ends its use. What that says is lost: close() tells it. */
template <typename T, auto End>
struct ends {
    void operator()(T *handle) const noexcept { static_cast<void>(End(handle)); }
};

inline int64_t close_now(iov_collection *c) noexcept
{
    return iov_collection_close(c, nullptr);
}

} // namespace detail

using metadata = std::map<std::string, std::string>;
using uuid = struct iov_uuid;

/* What is known of a workspace or a collection. */
struct record {
    std::string name;
    std::string backend;
    std::string controls;
    metadata meta;
    iov::uuid uuid;
};

/* What can be said of a new collection. Empty: the defaults. */
struct options {
    metadata meta = {};
    std::string backend = {};
    std::string controls = {};
};

enum class failure { stop = IOV_STOP, keep_on = IOV_CONTINUE, rollback = IOV_ROLLBACK };
enum class order { free = IOV_FREE, chain = IOV_CHAIN };
enum class status {
    waiting = IOV_WAITING,
    running = IOV_RUNNING,
    done = IOV_DONE,
    failed = IOV_FAILED,
    skipped = IOV_SKIPPED,
    undone = IOV_UNDONE
};

namespace detail {

inline std::vector<iov_pair> pairs(const metadata &meta)
{
    std::vector<iov_pair> all;
    for (const auto &[key, value] : meta)
        all.push_back({key.c_str(), value.c_str()});
    return all;
}

inline std::vector<record> taken(iov_records *records)
{
    struct frees {
        void operator()(iov_records *r) const noexcept { iov_records_free(r); }
    };
    std::unique_ptr<iov_records, frees> owned(records);
    std::vector<record> all;
    for (size_t i = 0; i < iov_records_count(records); i++) {
        const iov_record &r = *iov_records_get(records, i);
        record one{r.name, r.backend, r.controls, {}, r.uuid};
        for (size_t k = 0; k < r.meta_count; k++)
            one.meta.emplace(r.meta[k].key, r.meta[k].value);
        all.push_back(std::move(one));
    }
    return all;
}

} // namespace detail

class session;
class batch;

/* A collection that is in use. Its verbs are carried out at once; those of a batch are the batch's. */
class collection {
public:
    /* How many bytes were read: fewer than there is room for only at the end. */
    size_t read(std::span<std::byte> to, uint64_t at) const
    {
        return static_cast<size_t>(
            detail::check(iov_read(get(), to.data(), to.size(), at, nullptr)));
    }
    void write(std::span<const std::byte> from, uint64_t at) const
    {
        detail::check(iov_write(get(), from.data(), from.size(), at, nullptr));
    }
    /* Where it lies. */
    uint64_t append(std::span<const std::byte> from) const
    {
        return static_cast<uint64_t>(
            detail::check(iov_append(get(), from.data(), from.size(), nullptr)));
    }
    void truncate(uint64_t size) const { detail::check(iov_truncate(get(), size, nullptr)); }
    void sync() const { detail::check(iov_sync(get(), nullptr)); }
    uint64_t size() const { return static_cast<uint64_t>(detail::check(iov_size(get()))); }
    /* How many bytes there were. */
    uint64_t copy(uint64_t at, uint64_t len, const collection &to, uint64_t to_at) const
    {
        return static_cast<uint64_t>(
            detail::check(iov_copy(get(), at, len, to.get(), to_at, nullptr)));
    }
    iov::uuid uuid() const
    {
        iov::uuid told;
        detail::check(iov_collection_uuid(get(), &told));
        return told;
    }
    record known() const
    {
        iov_records *found = nullptr;
        detail::check(iov_get_meta(get(), &found, nullptr));
        return detail::taken(found).at(0);
    }
    void set(const std::string &key, const std::string &value) const
    {
        const iov_pair change = {key.c_str(), value.c_str()};
        detail::check(iov_set_meta(get(), &change, 1, nullptr));
    }
    void unset(const std::string &key) const
    {
        const iov_pair change = {key.c_str(), nullptr};
        detail::check(iov_set_meta(get(), &change, 1, nullptr));
    }
    /* Ends its use, and says what the destructor can't: whether all was written back. */
    void close() { detail::check(iov_collection_close(handle.release(), nullptr)); }

    iov_collection *get() const noexcept { return handle.get(); }

private:
    friend class workspace;
    friend class batch;
    explicit collection(iov_collection *c) : handle(c) {}
    std::unique_ptr<iov_collection, detail::ends<iov_collection, detail::close_now>> handle;
};

/* A request of a batch. Not to be used when the batch is gone. */
class request {
public:
    /* What the verb returns. Throws if it failed, was skipped, or hasn't ended. */
    int64_t result() const { return detail::check(iov_result(of, number)); }
    iov::status status() const
    {
        return static_cast<iov::status>(detail::check(iov_request_status(of, number)));
    }
    /* Makes it need another one: it waits for that, and is skipped if it fails. */
    const request &after(const request &needed) const
    {
        detail::check(iov_batch_after(of, number, &needed.number, 1));
        return *this;
    }

private:
    friend class batch;
    friend class workspace;
    request(iov_batch *b, int64_t n) : of(b), number(n) {}
    iov_batch *of;
    int64_t number;
};

class workspace {
public:
    collection create(const std::string &name, const options &said = {}) const
    {
        return create_in(name, said, nullptr);
    }
    collection create(const std::string &name, const options &said, const batch &in) const;
    collection open(const std::string &name) const
    {
        iov_collection *c = nullptr;
        detail::check(iov_collection_open(get(), name.c_str(), &c, nullptr));
        return collection(c);
    }
    collection open(const iov::uuid &id) const
    {
        iov_collection *c = nullptr;
        detail::check(iov_collection_open_uuid(get(), &id, &c, nullptr));
        return collection(c);
    }
    record lookup(const std::string &name) const
    {
        iov_records *found = nullptr;
        detail::check(iov_collection_lookup(get(), name.c_str(), &found, nullptr));
        return detail::taken(found).at(0);
    }
    std::vector<record> search(const std::string &predicate = "") const
    {
        iov_records *found = nullptr;
        detail::check(iov_collection_search(get(), predicate.c_str(), &found, nullptr));
        return detail::taken(found);
    }
    void remove(const std::string &name) const
    {
        detail::check(iov_collection_delete(get(), name.c_str(), nullptr));
    }
    /* Deletes the workspace itself. It must be empty. */
    void remove_self()
    {
        detail::check(iov_workspace_delete(handle.get()));
        static_cast<void>(handle.release());
    }

    iov_workspace *get() const noexcept { return handle.get(); }

private:
    friend class session;
    explicit workspace(iov_workspace *w) : handle(w) {}
    collection create_in(const std::string &name, const options &said, iov_batch *in) const
    {
        const auto meta = detail::pairs(said.meta);
        const iov_options all = {sizeof(iov_options),
                                 said.backend.empty() ? nullptr : said.backend.c_str(),
                                 said.controls.c_str(), meta.data(), meta.size()};
        iov_collection *c = nullptr;
        detail::check(iov_collection_create(get(), name.c_str(), &all, &c, in));
        return collection(c);
    }
    std::unique_ptr<iov_workspace, detail::ends<iov_workspace, iov_workspace_close>> handle;
};

class session {
public:
    /* "pool:NAME", "pool" or "memory". */
    explicit session(const std::string &place)
    {
        iov_session *s = nullptr;
        detail::check(iov_session_open(place.c_str(), &s));
        handle.reset(s);
    }
    void attach(const std::string &name, const std::string &kind, const std::string &config = "") const
    {
        detail::check(iov_backend_attach(get(), name.c_str(), kind.c_str(), config.c_str()));
    }
    workspace create_workspace(const std::string &name, const metadata &meta = {}) const
    {
        const auto all = detail::pairs(meta);
        iov_workspace *w = nullptr;
        detail::check(iov_workspace_create(get(), name.c_str(), all.data(), all.size(), &w));
        return workspace(w);
    }
    workspace load_workspace(const std::string &name) const
    {
        iov_workspace *w = nullptr;
        detail::check(iov_workspace_load(get(), name.c_str(), &w));
        return workspace(w);
    }
    std::vector<record> search_workspaces(const std::string &predicate = "") const
    {
        iov_records *found = nullptr;
        detail::check(iov_workspace_search(get(), predicate.c_str(), &found));
        return detail::taken(found);
    }

    iov_session *get() const noexcept { return handle.get(); }

private:
    std::unique_ptr<iov_session, detail::ends<iov_session, iov_session_close>> handle;
};

/* Requests that are collected, started, and run while the program does something else. Spans have to stay
 * until it has ended. Its destructor cancels it and waits. */
class batch {
public:
    explicit batch(const session &s, failure f = failure::stop, order o = order::free)
    {
        iov_batch *b = nullptr;
        detail::check(iov_batch_create(s.get(), static_cast<iov_failure>(f),
                                       static_cast<iov_order>(o), &b));
        handle.reset(b);
    }
    request read(const collection &c, std::span<std::byte> to, uint64_t at) const
    {
        return note(iov_read(c.get(), to.data(), to.size(), at, get()));
    }
    request write(const collection &c, std::span<const std::byte> from, uint64_t at) const
    {
        return note(iov_write(c.get(), from.data(), from.size(), at, get()));
    }
    request append(const collection &c, std::span<const std::byte> from) const
    {
        return note(iov_append(c.get(), from.data(), from.size(), get()));
    }
    request truncate(const collection &c, uint64_t size) const
    {
        return note(iov_truncate(c.get(), size, get()));
    }
    request sync(const collection &c) const { return note(iov_sync(c.get(), get())); }
    request copy(const collection &c, uint64_t at, uint64_t len, const collection &to,
                 uint64_t to_at) const
    {
        return note(iov_copy(c.get(), at, len, to.get(), to_at, get()));
    }
    request set(const collection &c, const std::string &key, const std::string &value) const
    {
        const iov_pair change = {key.c_str(), value.c_str()};
        return note(iov_set_meta(c.get(), &change, 1, get()));
    }
    request remove(const workspace &w, const std::string &name) const
    {
        return note(iov_collection_delete(w.get(), name.c_str(), get()));
    }
    request close(collection &&c) const
    {
        return note(iov_collection_close(c.handle.release(), get()));
    }
    void start() const { detail::check(iov_batch_start(get())); }
    /* Waits until it has ended. Its failures are told by result(). */
    void wait() const { detail::check(iov_wait(get(), -1)); }
    /* Whether it ended in time. */
    bool wait(std::chrono::nanoseconds limit) const
    {
        return detail::check(iov_wait(get(), limit.count() < 0 ? 0 : limit.count())) == 1;
    }
    bool test() const { return detail::check(iov_test(get())) == 1; }
    void cancel() const { detail::check(iov_cancel(get())); }
    /* Throws its first failure. */
    void result() const { detail::check(iov_batch_result(get())); }

    iov_batch *get() const noexcept { return handle.get(); }

private:
    request note(int64_t returned) const { return {get(), detail::check(returned)}; }
    std::unique_ptr<iov_batch, detail::ends<iov_batch, iov_batch_free>> handle;
};

/* The collection can be used by requests of the batch right away, by others when it has been made. */
inline collection workspace::create(const std::string &name, const options &said,
                                    const batch &in) const
{
    return create_in(name, said, in.get());
}

} // namespace iov

#endif
