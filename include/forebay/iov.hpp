/* iov.hpp: Forebay's verbs for C++20. Wraps iov.h: handles that close themselves, spans,
 * exceptions with error codes.
 *
 *     iov::session session("pool:default");
 *     iov::workspace workspace = session.create_workspace("campaign");
 *     iov::batch batch(session);
 *     iov::collection field = workspace.create("pressure.3", {.meta = {{"step", "3"}}}, batch);
 *     iov::request written = batch.write(field, std::as_bytes(std::span(pressure)), 0);
 *     batch.start();
 *     compute_next_step();
 *     batch.wait();
 *     written.result();              // throws iov::error if the write wasn't done
 *
 * Failures throw iov::error, a std::system_error: code() is an errno in std::generic_category(),
 * what() ends with the message of iov_error(). The rules of docs/howto/verbs.md for threads, forks
 * and buffers hold here.
 */
#ifndef FOREBAY_IOV_HPP
#define FOREBAY_IOV_HPP

#include <cerrno>
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
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __cpp_impl_coroutine
#include <coroutine>
#include <exception>
#include <future>
#endif

#include "iov.h"

namespace iov {

/* The failure of a verb. */
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

/* A deleter that closes a handle with the function End. It ignores errors of End; to see them, call
 * close() before. */
template <typename T, auto End>
struct ends {
    void operator()(T *handle) const noexcept { static_cast<void>(End(handle)); }
};

#ifdef __cpp_impl_coroutine
/* Resumes a coroutine when request `number`, or, if below zero, the whole batch, has ended. */
struct awaits_end {
    iov_batch *of;
    int64_t number;
    static bool await_ready() noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> coroutine) const
    {
        const auto go_on = [](void *c) { std::coroutine_handle<>::from_address(c).resume(); };
        return check(iov_when(of, number, go_on, coroutine.address())) == 0;
    }
};
#endif

inline int64_t close_now(iov_collection *c) noexcept
{
    return iov_collection_close(c, nullptr);
}

} // namespace detail

using metadata = std::map<std::string, std::string>;
using uuid = struct iov_uuid;

/* The record of a workspace or a collection. */
struct record {
    std::string name;
    std::string backend;
    std::string controls;
    metadata meta;
    iov::uuid uuid;
};

/* The options of a new collection. Empty fields mean defaults. */
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

/* A collection in use. Its verbs are carried out at once; class batch has verbs for later. */
class collection {
public:
    /* Returns the number of bytes read: fewer than to.size() only at the end. */
    size_t read(std::span<std::byte> to, uint64_t at) const
    {
        return static_cast<size_t>(
            detail::check(iov_read(get(), to.data(), to.size(), at, nullptr)));
    }
    void write(std::span<const std::byte> from, uint64_t at) const
    {
        detail::check(iov_write(get(), from.data(), from.size(), at, nullptr));
    }
    /* Returns the offset in bytes. */
    uint64_t append(std::span<const std::byte> from) const
    {
        return static_cast<uint64_t>(
            detail::check(iov_append(get(), from.data(), from.size(), nullptr)));
    }
    void truncate(uint64_t size) const { detail::check(iov_truncate(get(), size, nullptr)); }
    void sync() const { detail::check(iov_sync(get(), nullptr)); }
    uint64_t size() const { return static_cast<uint64_t>(detail::check(iov_size(get()))); }
    /* Returns the number of bytes copied. */
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
    /* Closes the collection. Throws if bytes couldn't be written back; the destructor can't. */
    void close() { detail::check(iov_collection_close(handle.release(), nullptr)); }

    iov_collection *get() const noexcept { return handle.get(); }

private:
    friend class workspace;
    friend class batch;
    explicit collection(iov_collection *c) : handle(c) {}
    std::unique_ptr<iov_collection, detail::ends<iov_collection, detail::close_now>> handle;
};

/* A request of a batch. It must not be used after the batch is destroyed. */
class request {
public:
    /* Returns the verb's result. Throws if it failed, was skipped, or hasn't ended. */
    int64_t result() const { return detail::check(iov_result(of, number)); }
    iov::status status() const
    {
        return static_cast<iov::status>(detail::check(iov_request_status(of, number)));
    }
    /* Makes this request wait for `needed`. It is skipped if `needed` fails. */
    const request &after(const request &needed) const
    {
        detail::check(iov_batch_after(of, number, &needed.number, 1));
        return *this;
    }

#ifdef __cpp_impl_coroutine
    /* co_await: resumes the coroutine with the result when the request has ended. One thread of the
     * session resumes all coroutines, one at a time. The batch must be started before, and must not
     * be destroyed until then. */
    auto operator co_await() const noexcept
    {
        struct awaiter : detail::awaits_end {
            int64_t await_resume() const { return detail::check(iov_result(of, number)); }
        };
        return awaiter{{of, number}};
    }
#endif

private:
    friend class batch;
    friend class workspace;
    request(iov_batch *b, int64_t n) : of(b), number(n) {}
    iov_batch *of;
    int64_t number;
};

enum class access { read = IOV_READ, read_write = IOV_READ_WRITE };
using token = struct iov_token;

/* Memory of a pool: a chunk of a collection, or a buffer. The destructor frees it, and must run
 * before the session's. */
class chunk {
public:
    chunk(chunk &&other) noexcept
        : of(std::exchange(other.of, nullptr)), memory(other.memory), allocated(other.allocated)
    {
    }
    chunk &operator=(chunk &&other) noexcept
    {
        std::swap(of, other.of);
        std::swap(memory, other.memory);
        std::swap(allocated, other.allocated);
        return *this;
    }
    chunk(const chunk &) = delete;
    chunk &operator=(const chunk &) = delete;
    ~chunk()
    {
        if (of && allocated)
            iov_free(of, memory.data());
        else if (of)
            static_cast<void>(iov_chunk_unmap(of, memory.data()));
    }
    std::span<std::byte> bytes() const noexcept { return memory; }
    /* Makes a token for other processes of this node: for all of the memory, or a part. */
    iov::token share() const { return share(0, memory.size()); }
    iov::token share(size_t from, size_t len) const
    {
        iov::token named;
        detail::check(iov_chunk_share(of, memory.data() + from, len, &named));
        return named;
    }

private:
    friend class session;
    chunk(iov_session *s, void *at, size_t len, bool a)
        : of(s), memory(static_cast<std::byte *>(at), len), allocated(a)
    {
    }
    iov_session *of;
    std::span<std::byte> memory;
    bool allocated;
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
    /* Deletes this workspace, which must be empty. */
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
    /* `place`: see iov_session_open(). */
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
    /* Sets the back end of new collections that match: see iov_backend_choose(). */
    void choose(const std::string &pattern, const std::string &controls, const std::string &name) const
    {
        detail::check(iov_backend_choose(get(), pattern.c_str(), controls.c_str(), name.c_str()));
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
    /* Allocates a zeroed buffer; in a session with a pool other processes can attach it. */
    chunk allocate(size_t len) const
    {
        void *memory = iov_allocate(get(), len);
        if (!memory)
            throw error(-ENOMEM);
        return {get(), memory, len, true};
    }
    /* Maps bytes of a collection of this session, without a copy. */
    chunk map(const collection &c, uint64_t at, size_t len, iov::access how) const
    {
        void *memory = nullptr;
        detail::check(iov_chunk_map(c.get(), at, len, static_cast<iov_access>(how), &memory));
        return {get(), memory, len, false};
    }
    chunk attach(const iov::token &named) const
    {
        void *memory = nullptr;
        size_t len = 0;
        detail::check(iov_chunk_attach(get(), &named, &memory, &len));
        return {get(), memory, len, false};
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

/* Requests that are collected, started, and run while the program does something else. The memory
 * of spans must stay valid until the batch has ended. Its destructor cancels it and waits. */
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
    /* Waits until the batch has ended. result() throws its first failure. */
    void wait() const { detail::check(iov_wait(get(), -1)); }
    /* Waits at most `limit`, and returns whether the batch has ended. */
    bool wait(std::chrono::nanoseconds limit) const
    {
        return detail::check(iov_wait(get(), limit.count() < 0 ? 0 : limit.count())) == 1;
    }
    bool test() const { return detail::check(iov_test(get())) == 1; }
    void cancel() const { detail::check(iov_cancel(get())); }
    /* Throws the batch's first failure, if any. */
    void result() const { detail::check(iov_batch_result(get())); }

#ifdef __cpp_impl_coroutine
    /* co_await: as with a request, when the whole batch has ended. Throws its first failure. */
    auto operator co_await() const noexcept
    {
        struct awaiter : detail::awaits_end {
            void await_resume() const { detail::check(iov_batch_result(of)); }
        };
        return awaiter{{get(), -1}};
    }
#endif

    iov_batch *get() const noexcept { return handle.get(); }

private:
    request note(int64_t returned) const { return {get(), detail::check(returned)}; }
    std::unique_ptr<iov_batch, detail::ends<iov_batch, iov_batch_free>> handle;
};

/* Later requests of the batch can use the collection; other calls only after it is created. */
inline collection workspace::create(const std::string &name, const options &said,
                                    const batch &in) const
{
    return create_in(name, said, in.get());
}

#ifdef __cpp_impl_coroutine
/* A coroutine that starts at once. get() waits for its end, and returns its result or throws its
 * exception. For programs without coroutine types; a program's types can await requests, too. */
template <typename T = void>
class task {
    struct returns_nothing {
        std::promise<T> end;
        void return_void() { end.set_value(); }
    };
    struct returns_something {
        std::promise<T> end;
        template <typename U>
        void return_value(U &&value)
        {
            end.set_value(std::forward<U>(value));
        }
    };

public:
    struct promise_type : std::conditional_t<std::is_void_v<T>, returns_nothing, returns_something> {
        task get_return_object() { return task(this->end.get_future()); }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void unhandled_exception() { this->end.set_exception(std::current_exception()); }
    };
    T get() { return end.get(); }

private:
    explicit task(std::future<T> &&f) : end(std::move(f)) {}
    std::future<T> end;
};
#endif

} // namespace iov

#endif
