// What iov.hpp adds to iov.h: verbs PLACE DIRECTORY HEAP.SO, as verbs.c.
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "forebay/iov.hpp"

#define CHECK(what)                                                                              \
    do {                                                                                         \
        if (!(what)) {                                                                           \
            std::cerr << __FILE__ << ":" << __LINE__ << ": not so: " << #what << "\n";            \
            std::exit(1);                                                                        \
        }                                                                                        \
    } while (0)

static std::span<const std::byte> bytes(std::string_view text)
{
    return std::as_bytes(std::span(text.data(), text.size()));
}

static std::string text(const iov::collection &c)
{
    std::array<std::byte, 64> buffer;
    size_t n = c.read(buffer, 0);
    return std::string(reinterpret_cast<const char *>(buffer.data()), n);
}

template <typename F>
static bool fails(int code, std::string_view word, F f)
{
    try {
        f();
    } catch (const iov::error &e) {
        return e.code() == std::error_code(code, std::generic_category()) &&
               std::string_view(e.what()).find(word) != std::string_view::npos;
    }
    return false;
}

static void all(const char *place, const char *directory, const char *heap)
{
    iov::session session{place};
    session.attach("scratch", "directory", directory);
    session.attach("heap", heap, "limit=100000");
    iov::workspace w = session.create_workspace("w", {{"owner", "me"}});
    CHECK(session.search_workspaces("owner = \"me\"").at(0).name == "w");
    CHECK(fails(ENOENT, "absent", [&] { session.load_workspace("absent"); }));
    CHECK(fails(EINVAL, "nowhere", [] { iov::session("nowhere"); }));
    for (const char *backend : {"memory", "scratch", "heap"}) {
        iov::collection c = w.create("c", {.meta = {{"step", "3"}}, .backend = backend});
        c.write(bytes("hello"), 0);
        CHECK(c.append(bytes(" world")) == 5 && c.size() == 11 && text(c) == "hello world");
        CHECK(c.copy(0, 5, c, 11) == 5);
        c.truncate(4);
        c.sync();
        c.set("step", "4");
        c.set("gone", "x");
        c.unset("gone");
        CHECK(w.search("step > 3").at(0).backend == backend);
        CHECK((w.lookup("c").meta == iov::metadata{{"step", "4"}}) && c.known().name == "c");
        c.close();
        CHECK(text(w.open(w.lookup("c").uuid)) == "hell" && text(w.open("c")) == "hell");
        w.remove("c");
        CHECK(fails(ENOENT, "'c'", [&] { w.open("c"); }));

        std::string from = "from the batch";
        std::array<std::byte, 64> to;
        iov::batch batch{session};
        iov::collection made = w.create("made", {.backend = backend}, batch);
        iov::request written = batch.write(made, bytes(from), 0);
        iov::request appended = batch.append(made, bytes("!"));
        appended.after(written);
        iov::request read = batch.read(made, to, 0).after(appended);
        batch.start();
        batch.wait();
        batch.result();
        CHECK(batch.test() && batch.wait(std::chrono::seconds(1)));
        CHECK(appended.result() == 14 && read.result() == 15 && std::memcmp(to.data(), "from the batch!", 15) == 0);

        iov::batch other{session, iov::failure::keep_on, iov::order::chain};
        iov::request cut = other.truncate(made, 3);
        iov::request fails_here = other.remove(w, "absent");
        iov::request closed = other.close(std::move(made));
        other.remove(w, "made");
        other.start();
        other.wait();
        CHECK(cut.status() == iov::status::done && closed.status() == iov::status::done);
        CHECK(fails(ENOENT, "absent", [&] { fails_here.result(); }));
        CHECK(fails(ENOENT, "absent", [&] { other.result(); }));
        CHECK(w.search().empty());
    }
    w.remove_self();
}

/* Writes, and reads back, without a thread that waits. */
static iov::task<std::string> written(const iov::session &session, const iov::workspace &w)
{
    std::array<std::byte, 64> to;
    iov::batch batch{session};
    iov::collection made = w.create("awaited", {}, batch);
    const iov::request write = batch.write(made, bytes("awaited"), 0);
    const iov::request read = batch.read(made, to, 0).after(write);
    batch.start();
    const int64_t n = co_await read;
    CHECK(co_await read == n && co_await write == 0);
    co_await batch;
    iov::batch fails{session};
    const iov::request absent = fails.remove(w, "absent");
    fails.start();
    try {
        co_await absent;
        CHECK(!"it failed");
    } catch (const iov::error &e) {
        CHECK(e.code().value() == ENOENT);
    }
    co_return std::string(reinterpret_cast<const char *>(to.data()), static_cast<size_t>(n));
}

static iov::task<> fails_in_between(const iov::session &session, const iov::workspace &w)
{
    iov::batch batch{session};
    batch.remove(w, "absent");
    batch.start();
    co_await batch;
}

static void coroutines_and_memory(const char *place)
{
    iov::session session{place};
    iov::workspace w = session.create_workspace("await");
    CHECK(written(session, w).get() == "awaited");
    w.remove("awaited");
    std::vector<iov::task<>> all;
    for (int i = 0; i < 20; i++)
        all.push_back(fails_in_between(session, w));
    for (auto &one : all)
        CHECK(fails(ENOENT, "absent", [&] { one.get(); }));

    session.attach("raw", "memory");
    session.choose("/await/raw-*", "", "raw");
    session.choose("/await/*", "temporality=once", "memory");
    static_cast<void>(w.create("raw-1"));
    static_cast<void>(w.create("raw-2", {.backend = "memory"}));
    static_cast<void>(w.create("other", {.controls = "temporality=once"}));
    CHECK(w.lookup("raw-1").backend == "raw" && w.lookup("raw-2").backend == "memory");
    CHECK(w.lookup("other").backend == "memory");
    CHECK(fails(ENODEV, "absent", [&] { session.choose("/**", "", "absent"); }));
    CHECK(fails(EINVAL, "pattern", [&] { session.choose("/[", "", "raw"); }));
    for (const char *name : {"raw-1", "raw-2", "other"})
        w.remove(name);

    iov::chunk buffer = session.allocate(10000);
    std::memset(buffer.bytes().data(), 1, 10000);
    if (std::string_view(place) != "memory") {
        iov::chunk same = session.attach(buffer.share(5000, 10));
        CHECK(same.bytes().size() == 10 && same.bytes()[9] == std::byte{1});
        same.bytes()[0] = std::byte{2};
        CHECK(buffer.bytes()[5000] == std::byte{2});
        iov::collection c = w.create("mapped");
        c.write(bytes("mapped"), 0);
        same = session.map(c, 2, 3, iov::access::read);
        CHECK(std::memcmp(same.bytes().data(), "ppe", 3) == 0);
        w.remove("mapped");
    }
    w.remove_self();
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    all(argv[1], argv[2], argv[3]);
    coroutines_and_memory(argv[1]);
    std::cout << "all as it should be\n";
}
