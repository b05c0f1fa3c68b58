/* mesh.hpp: meshes of simulations in HDF5 files, for C++20. N ranks write a file, M ranks read it.
 *
 *     forebay::mesh::part grid;                        // or your class that implements `interface`
 *     iov::session session("pool:default");
 *     forebay::mesh::iov_backend backend(session);     // or posix_backend, mpio_backend
 *     forebay::mesh::read(grid, "case/input.h5", backend, forebay::mesh::mpi(MPI_COMM_WORLD));
 *     ... simulation ...
 *     forebay::mesh::write(grid, "case/result.h5", backend, forebay::mesh::mpi(MPI_COMM_WORLD));
 *
 * Guarantees: a file can be read only when it is complete. A failure on one rank is an exception
 * (error) on all ranks. Ranks write exclusive ranges and hold no lock. The layout is that of
 * Python's forebay.mesh: docs/howto/meshes.md.
 *
 * Header only; compile with HDF5's C library (1.10 or later; a serial one is enough, as HDF5
 * handles only metadata). iov_backend needs libforebay_iov; without it, define FOREBAY_MESH_NO_IOV.
 * Classes that need MPI are defined if mpi.h was included before.
 */
#ifndef FOREBAY_MESH_HPP
#define FOREBAY_MESH_HPP

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <hdf5.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#ifndef FOREBAY_MESH_NO_IOV
#include "iov.hpp"
#endif

namespace forebay::mesh {

/* An invalid mesh or file (number() is 0), or failed I/O (number() is an errno). */
class error : public std::runtime_error {
public:
    explicit error(const std::string &what, int number = 0)
        : std::runtime_error(what), errno_(number)
    {
    }
    int number() const noexcept { return errno_; }

private:
    int errno_;
};

/* The types of numbers in arrays. */
enum class number { f32, f64, i8, i16, i32, i64, u8, u16, u32, u64 };

inline size_t size_of(number n)
{
    constexpr std::array<size_t, 10> sizes = {4, 8, 1, 2, 4, 8, 1, 2, 4, 8};
    return sizes[static_cast<size_t>(n)];
}

/* Values of points or of cells: rows of `columns` numbers each. 0 columns: an array of one
 * dimension, with one number in each row. */
struct field {
    std::string name;
    number type = number::f64;
    size_t columns = 0;
    std::span<const std::byte> bytes = {};
    size_t row_bytes() const { return size_of(type) * std::max<size_t>(columns, 1); }
};

/* The cells of one type: "tetra", "hexahedron", ... (cell_types()). */
struct block {
    std::string type;
    std::span<const int64_t> nodes = {};
    std::span<const int32_t> markers = {}; /* one for each cell, or empty */
    std::vector<field> data = {};
};

/* The input of write(): a rank's part of a mesh, in memory of the program. */
struct view {
    size_t dimension = 3;
    std::span<const double> points = {};
    std::vector<block> cells = {};
    std::vector<field> point_data = {};
    std::map<std::string, int32_t> marker_names = {};
    /* Numbers of the points in the whole mesh. Empty: no point is on two ranks. */
    std::span<const int64_t> point_ids = {};
    /* The first `owned` points are this rank's own. Without a value, a point belongs to the lowest
     * rank that has it. */
    std::optional<size_t> owned = {};
};

struct part;

/* The interface that a program implements for its mesh class. */
class interface {
public:
    virtual ~interface() = default;
    /* Returns the mesh that write() writes. */
    virtual view to_forebay() const = 0;
    /* Takes over the mesh that read() has read. */
    virtual void from_forebay(part &&read) = 0;
};

struct owned_field {
    std::string name;
    number type = number::f64;
    size_t columns = 0;
    std::vector<std::byte> bytes = {};
    template <typename T> std::span<const T> as() const
    {
        return {reinterpret_cast<const T *>(bytes.data()), bytes.size() / sizeof(T)};
    }
};

struct owned_block {
    std::string type;
    std::vector<int64_t> nodes = {};
    std::vector<int32_t> markers = {};
    std::vector<owned_field> data = {};
    int64_t first = 0; /* the number of the first cell in the whole mesh */
};

/* A mesh, or a rank's part of one, that owns its memory. read() fills in all fields. */
struct part : interface {
    size_t dimension = 3;
    std::vector<double> points;
    std::vector<owned_block> cells;
    std::vector<owned_field> point_data;
    std::map<std::string, int32_t> marker_names;
    std::vector<int64_t> point_ids;
    std::optional<size_t> owned;

    view to_forebay() const override
    {
        const auto seen = [](const std::vector<owned_field> &fields) {
            std::vector<field> all;
            for (const auto &f : fields)
                all.push_back({f.name, f.type, f.columns, f.bytes});
            return all;
        };
        view v{dimension, points, {}, seen(point_data), marker_names, point_ids, owned};
        for (const auto &b : cells)
            v.cells.push_back({b.type, b.nodes, b.markers, seen(b.data)});
        return v;
    }
    void from_forebay(part &&read) override { *this = std::move(read); }
};

/* Cell types in the order of the layout: their names in meshio, and their numbers of nodes. */
inline const std::vector<std::pair<std::string, size_t>> &cell_types()
{
    static const std::vector<std::pair<std::string, size_t>> types = {
        {"vertex", 1},        {"line", 2},          {"line3", 3},        {"triangle", 3},
        {"triangle6", 6},     {"quad", 4},          {"quad8", 8},        {"quad9", 9},
        {"tetra", 4},         {"tetra10", 10},      {"pyramid", 5},      {"pyramid13", 13},
        {"wedge", 6},         {"wedge15", 15},      {"wedge18", 18},     {"hexahedron", 8},
        {"hexahedron20", 20}, {"hexahedron24", 24}, {"hexahedron27", 27}};
    return types;
}

/* Returns the number of nodes of a cell type. */
inline size_t nodes_of(const std::string &type)
{
    for (const auto &[name, nodes] : cell_types())
        if (name == type)
            return nodes;
    throw error("cell type '" + type + "' isn't known");
}

/* Collective operations of the ranks of a job. */
class ranks {
public:
    virtual ~ranks() = default;
    virtual size_t rank() const = 0;
    virtual size_t size() const = 0;
    /* Returns the texts of all ranks, in the order of ranks. */
    virtual std::vector<std::string> gather(const std::string &mine) const = 0;
    /* Sends vector i to rank i. Returns the vectors that the ranks have sent to this one. */
    virtual std::vector<std::vector<int64_t>>
    exchange(const std::vector<std::vector<int64_t>> &parts) const = 0;
};

/* A job of a single process. */
class single : public ranks {
public:
    size_t rank() const override { return 0; }
    size_t size() const override { return 1; }
    std::vector<std::string> gather(const std::string &mine) const override { return {mine}; }
    std::vector<std::vector<int64_t>>
    exchange(const std::vector<std::vector<int64_t>> &parts) const override
    {
        return parts;
    }
};

/* An open file of a back end. Any rank can read and write at any offset. */
class file {
public:
    virtual ~file() = default;
    /* Writes all of `from` at offset `at`, or throws. */
    virtual void write(std::span<const std::byte> from, uint64_t at) = 0;
    /* Returns the number of bytes read: fewer than to.size() only at the end. */
    virtual size_t read(std::span<std::byte> to, uint64_t at) = 0;
    virtual uint64_t size() = 0;
    virtual void truncate(uint64_t size) = 0;
    virtual void close() = 0;
};

/* A way to create, open and complete files. */
class backend {
public:
    virtual ~backend() = default;
    /* Returns the path under which a file is written until it is complete. */
    virtual std::string partial(const std::string &path, const std::string &unique) const
    {
        return path + ".partial-" + unique;
    }
    /* Opens a file. All ranks call this. */
    virtual std::unique_ptr<file> open(const std::string &path, bool writing) = 0;
    /* Only the first rank calls the following functions. */
    virtual std::unique_ptr<file> open_alone(const std::string &path) = 0;
    virtual std::unique_ptr<file> create(const std::string &path) = 0;
    /* Completes a file: renames it from `partial` to `path`, and closes it. */
    virtual void seal(file &of, const std::string &partial, const std::string &path) = 0;
    virtual void discard(const std::string &partial) noexcept = 0;
};

namespace detail {

[[noreturn]] inline void fail(const std::string &what, int number)
{
    throw error(what + ": " + std::generic_category().message(number), number);
}

class posix_file : public file {
public:
    posix_file(const std::string &path, int flags)
        : named(path), fd(::open(path.c_str(), flags | O_CLOEXEC, 0666))
    {
        if (fd < 0)
            fail(named, errno);
    }
    ~posix_file() override
    {
        if (fd >= 0)
            ::close(fd);
    }
    posix_file(const posix_file &) = delete;
    posix_file &operator=(const posix_file &) = delete;
    void write(std::span<const std::byte> from, uint64_t at) override
    {
        for (size_t done = 0; done < from.size();) {
            const ssize_t n =
                pwrite(fd, from.data() + done, from.size() - done, static_cast<off_t>(at + done));
            if (n < 0 && errno != EINTR)
                fail(named, errno);
            done += n > 0 ? static_cast<size_t>(n) : 0;
        }
    }
    size_t read(std::span<std::byte> to, uint64_t at) override
    {
        size_t done = 0;
        while (done < to.size()) {
            const ssize_t n =
                pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(at + done));
            if (n < 0 && errno != EINTR)
                fail(named, errno);
            if (n == 0)
                break;
            done += n > 0 ? static_cast<size_t>(n) : 0;
        }
        return done;
    }
    uint64_t size() override
    {
        struct stat s;
        if (fstat(fd, &s) != 0)
            fail(named, errno);
        return static_cast<uint64_t>(s.st_size);
    }
    void truncate(uint64_t to) override
    {
        if (ftruncate(fd, static_cast<off_t>(to)) != 0)
            fail(named, errno);
    }
    void close() override
    {
        if (fd >= 0 && ::close(std::exchange(fd, -1)) != 0)
            fail(named, errno);
    }

private:
    std::string named;
    int fd;
};

} // namespace detail

/* Plain files. */
class posix_backend : public backend {
public:
    std::unique_ptr<file> open(const std::string &path, bool writing) override
    {
        return std::make_unique<detail::posix_file>(path, writing ? O_RDWR : O_RDONLY);
    }
    std::unique_ptr<file> open_alone(const std::string &path) override
    {
        return std::make_unique<detail::posix_file>(path, O_RDONLY);
    }
    std::unique_ptr<file> create(const std::string &path) override
    {
        return std::make_unique<detail::posix_file>(path, O_RDWR | O_CREAT | O_EXCL);
    }
    void seal(file &of, const std::string &partial, const std::string &path) override
    {
        of.close();
        if (std::rename(partial.c_str(), path.c_str()) != 0)
            detail::fail(path, errno);
    }
    void discard(const std::string &partial) noexcept override { ::unlink(partial.c_str()); }
};

#ifndef FOREBAY_MESH_NO_IOV
namespace detail {

class iov_file : public file {
public:
    explicit iov_file(iov::collection &&c) : of(std::move(c)) {}
    void write(std::span<const std::byte> from, uint64_t at) override { of.write(from, at); }
    size_t read(std::span<std::byte> to, uint64_t at) override { return of.read(to, at); }
    uint64_t size() override { return of.size(); }
    void truncate(uint64_t size) override { of.truncate(size); }
    void close() override
    {
        if (of.get())
            of.close();
    }

private:
    iov::collection of;
};

} // namespace detail

/* Collections of a session. A path is WORKSPACE/NAME, which in a pool is the file /WORKSPACE/NAME.
 * The workspace must exist. An existing collection of the name is deleted when writing begins. The
 * controls are declared for the file; by default it is immutable when it is complete. */
class iov_backend : public backend {
public:
    explicit iov_backend(const iov::session &s, std::string declared = "mutability=immutable")
        : of(s), controls(std::move(declared))
    {
    }
    std::string partial(const std::string &path, const std::string &) const override
    {
        return path;
    }
    std::unique_ptr<file> open(const std::string &path, bool) override { return open_alone(path); }
    std::unique_ptr<file> open_alone(const std::string &path) override
    {
        const auto [workspace, name] = split(path);
        return std::make_unique<detail::iov_file>(of.load_workspace(workspace).open(name));
    }
    std::unique_ptr<file> create(const std::string &path) override
    {
        const auto [workspace, name] = split(path);
        const iov::workspace inside = of.load_workspace(workspace);
        discard(path);
        return std::make_unique<detail::iov_file>(inside.create(name, {.controls = controls}));
    }
    void seal(file &f, const std::string &, const std::string &) override { f.close(); }
    void discard(const std::string &path) noexcept override
    {
        try {
            const auto [workspace, name] = split(path);
            of.load_workspace(workspace).remove(name);
        } catch (const std::exception &) {
        }
    }

private:
    static std::pair<std::string, std::string> split(const std::string &path)
    {
        const size_t begin = path.starts_with("/") ? 1 : 0, slash = path.find('/', begin);
        if (slash == std::string::npos || path.find('/', slash + 1) != std::string::npos)
            throw error("path '" + path + "': WORKSPACE/NAME is needed");
        return {path.substr(begin, slash - begin), path.substr(slash + 1)};
    }
    const iov::session &of;
    std::string controls;
};
#endif

#ifdef MPI_VERSION
/* The ranks of a communicator. */
class mpi : public ranks {
public:
    explicit mpi(MPI_Comm c) : of(c) {}
    size_t rank() const override
    {
        int r;
        MPI_Comm_rank(of, &r);
        return static_cast<size_t>(r);
    }
    size_t size() const override
    {
        int n;
        MPI_Comm_size(of, &n);
        return static_cast<size_t>(n);
    }
    std::vector<std::string> gather(const std::string &mine) const override
    {
        const size_t n = size();
        int length = static_cast<int>(mine.size());
        std::vector<int> lengths(n), at(n);
        MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, of);
        std::exclusive_scan(lengths.begin(), lengths.end(), at.begin(), 0);
        std::string all(static_cast<size_t>(at[n - 1] + lengths[n - 1]), '\0');
        MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), at.data(),
                       MPI_CHAR, of);
        std::vector<std::string> found;
        for (size_t r = 0; r < n; r++)
            found.push_back(
                all.substr(static_cast<size_t>(at[r]), static_cast<size_t>(lengths[r])));
        return found;
    }
    std::vector<std::vector<int64_t>>
    exchange(const std::vector<std::vector<int64_t>> &parts) const override
    {
        const size_t n = size();
        std::vector<int> out(n), in(n), out_at(n), in_at(n);
        for (size_t r = 0; r < n; r++)
            out[r] = static_cast<int>(parts[r].size());
        MPI_Alltoall(out.data(), 1, MPI_INT, in.data(), 1, MPI_INT, of);
        std::exclusive_scan(out.begin(), out.end(), out_at.begin(), 0);
        std::exclusive_scan(in.begin(), in.end(), in_at.begin(), 0);
        std::vector<int64_t> sent, came(static_cast<size_t>(in_at[n - 1] + in[n - 1]));
        for (const auto &p : parts)
            sent.insert(sent.end(), p.begin(), p.end());
        MPI_Alltoallv(sent.data(), out.data(), out_at.data(), MPI_INT64_T, came.data(), in.data(),
                      in_at.data(), MPI_INT64_T, of);
        std::vector<std::vector<int64_t>> found;
        for (size_t r = 0; r < n; r++)
            found.emplace_back(came.begin() + in_at[r], came.begin() + in_at[r] + in[r]);
        return found;
    }

private:
    MPI_Comm of;
};

namespace detail {

class mpi_file : public file {
public:
    mpi_file(MPI_Comm c, const std::string &path, int mode) : named(path)
    {
        check(MPI_File_open(c, path.c_str(), mode, MPI_INFO_NULL, &of));
    }
    ~mpi_file() override
    {
        if (of != MPI_FILE_NULL)
            MPI_File_close(&of);
    }
    mpi_file(const mpi_file &) = delete;
    mpi_file &operator=(const mpi_file &) = delete;
    void write(std::span<const std::byte> from, uint64_t at) override
    {
        for (size_t done = 0; done < from.size();) {
            MPI_Status status;
            int n = static_cast<int>(std::min(from.size() - done, longest));
            check(MPI_File_write_at(of, static_cast<MPI_Offset>(at + done), from.data() + done, n,
                                    MPI_BYTE, &status));
            MPI_Get_count(&status, MPI_BYTE, &n);
            if (n <= 0)
                fail(named, ENOSPC);
            done += static_cast<size_t>(n);
        }
    }
    size_t read(std::span<std::byte> to, uint64_t at) override
    {
        size_t done = 0;
        while (done < to.size()) {
            MPI_Status status;
            int n = static_cast<int>(std::min(to.size() - done, longest));
            check(MPI_File_read_at(of, static_cast<MPI_Offset>(at + done), to.data() + done, n,
                                   MPI_BYTE, &status));
            MPI_Get_count(&status, MPI_BYTE, &n);
            if (n <= 0)
                break;
            done += static_cast<size_t>(n);
        }
        return done;
    }
    uint64_t size() override
    {
        MPI_Offset n;
        check(MPI_File_get_size(of, &n));
        return static_cast<uint64_t>(n);
    }
    void truncate(uint64_t to) override
    {
        check(MPI_File_set_size(of, static_cast<MPI_Offset>(to)));
    }
    void close() override
    {
        if (of != MPI_FILE_NULL)
            check(MPI_File_close(&of));
    }

private:
    static constexpr size_t longest = size_t{1} << 30; /* MPI's counts have 31 bits */
    void check(int returned) const
    {
        if (returned == MPI_SUCCESS)
            return;
        int kind, length;
        char text[MPI_MAX_ERROR_STRING];
        MPI_Error_class(returned, &kind);
        MPI_Error_string(returned, text, &length);
        throw error(named + ": " + text, kind == MPI_ERR_NO_SUCH_FILE ? ENOENT
                                         : kind == MPI_ERR_NO_SPACE   ? ENOSPC
                                         : kind == MPI_ERR_ACCESS     ? EACCES
                                                                      : EIO);
    }
    std::string named;
    MPI_File of = MPI_FILE_NULL;
};

} // namespace detail

/* Files by MPI-IO. For a pool, run under `forebay exec` with paths below /fb. */
class mpio_backend : public posix_backend {
public:
    explicit mpio_backend(MPI_Comm c) : of(c) {}
    std::unique_ptr<file> open(const std::string &path, bool writing) override
    {
        return std::make_unique<detail::mpi_file>(of, path,
                                                  writing ? MPI_MODE_RDWR : MPI_MODE_RDONLY);
    }

private:
    MPI_Comm of;
};
#endif

namespace detail {

/* Runs a call on each rank. An exception on one rank is thrown on all. */
inline void together(const ranks &all, const std::function<void()> &call)
{
    std::string mine;
    const auto told = [&](int number, const char *what) {
        mine = std::to_string(number) + " " +
               (all.size() > 1 ? "rank " + std::to_string(all.rank()) + ": " : "") + what;
    };
    try {
        call();
    } catch (const error &e) {
        told(e.number(), e.what());
    } catch (const std::system_error &e) {
        told(e.code().value(), e.what());
    } catch (const std::exception &e) {
        told(0, e.what());
    }
    for (const auto &text : all.gather(mine))
        if (!text.empty())
            throw error(text.substr(text.find(' ') + 1), std::atoi(text.c_str()));
}

/* Runs a call on the first rank. Returns its text on all ranks. */
inline std::string first(const ranks &all, const std::function<std::string()> &call)
{
    std::string mine;
    together(all, [&] {
        if (all.rank() == 0)
            mine = call();
    });
    return all.gather(mine)[0];
}

/* Packs texts and numbers into one text for sending. Each is a length, a colon and the bytes. */
class packed {
public:
    packed() = default;
    explicit packed(std::string text) : bytes(std::move(text)) {}
    void put(const std::string &text) { bytes += std::to_string(text.size()) + ":" + text; }
    void put(int64_t n) { put(std::to_string(n)); }
    std::string text()
    {
        const size_t colon = bytes.find(':', at), length = std::stoul(bytes.substr(at, colon - at));
        at = colon + 1 + length;
        return bytes.substr(colon + 1, length);
    }
    int64_t integer() { return std::stoll(text()); }
    std::string bytes;

private:
    size_t at = 0;
};

constexpr uint64_t nowhere = std::numeric_limits<uint64_t>::max();

/* A dataset. Its rows begin at byte `offset` of the file, if they are contiguous and
 * little-endian. */
struct dataset {
    std::string path;
    number type = number::f64;
    uint64_t rows = 0;
    size_t columns = 0; /* 0: one dimension */
    uint64_t offset = nowhere;
    size_t row_bytes() const { return size_of(type) * std::max<size_t>(columns, 1); }
    void pack(packed &p) const
    {
        p.put(path);
        for (const uint64_t n :
             {static_cast<uint64_t>(type), rows, static_cast<uint64_t>(columns), offset})
            p.put(static_cast<int64_t>(n));
    }
    static dataset unpack(packed &p)
    {
        dataset d;
        d.path = p.text();
        d.type = static_cast<number>(p.integer());
        d.rows = static_cast<uint64_t>(p.integer());
        d.columns = static_cast<size_t>(p.integer());
        d.offset = static_cast<uint64_t>(p.integer());
        return d;
    }
};

struct contents_of_type {
    std::string type;
    dataset nodes;
    std::optional<dataset> marker = {};
    std::vector<std::pair<std::string, dataset>> data = {};
    std::vector<int64_t> parts = {};
};

struct contents {
    dataset points;
    std::vector<int64_t> parts = {};
    std::vector<contents_of_type> cells = {};
    std::vector<std::pair<std::string, dataset>> point_data = {};
    std::map<std::string, int32_t> marker_names = {};

    template <typename F> void each(F call)
    {
        call(points);
        for (auto &c : cells) {
            call(c.nodes);
            if (c.marker)
                call(*c.marker);
            for (auto &[name, d] : c.data)
                call(d);
        }
        for (auto &[name, d] : point_data)
            call(d);
    }
    std::string pack() const
    {
        packed p;
        const auto list = [&](const std::vector<int64_t> &l) {
            p.put(static_cast<int64_t>(l.size()));
            for (const int64_t n : l)
                p.put(n);
        };
        const auto fields = [&](const std::vector<std::pair<std::string, dataset>> &l) {
            p.put(static_cast<int64_t>(l.size()));
            for (const auto &[name, d] : l) {
                p.put(name);
                d.pack(p);
            }
        };
        points.pack(p);
        list(parts);
        p.put(static_cast<int64_t>(cells.size()));
        for (const auto &c : cells) {
            p.put(c.type);
            c.nodes.pack(p);
            p.put(c.marker ? 1 : 0);
            if (c.marker)
                c.marker->pack(p);
            fields(c.data);
            list(c.parts);
        }
        fields(point_data);
        p.put(static_cast<int64_t>(marker_names.size()));
        for (const auto &[name, n] : marker_names) {
            p.put(name);
            p.put(n);
        }
        return p.bytes;
    }
    static contents unpack(const std::string &text)
    {
        packed p(text);
        contents all;
        const auto list = [&] {
            std::vector<int64_t> l(static_cast<size_t>(p.integer()));
            for (int64_t &n : l)
                n = p.integer();
            return l;
        };
        const auto fields = [&] {
            std::vector<std::pair<std::string, dataset>> l;
            for (int64_t n = p.integer(); n > 0; n--) {
                std::string name = p.text();
                l.emplace_back(std::move(name), dataset::unpack(p));
            }
            return l;
        };
        all.points = dataset::unpack(p);
        all.parts = list();
        for (int64_t n = p.integer(); n > 0; n--) {
            contents_of_type c{p.text(), dataset::unpack(p)};
            if (p.integer())
                c.marker = dataset::unpack(p);
            c.data = fields();
            c.parts = list();
            all.cells.push_back(std::move(c));
        }
        all.point_data = fields();
        for (int64_t n = p.integer(); n > 0; n--) {
            const std::string name = p.text();
            all.marker_names[name] = static_cast<int32_t>(p.integer());
        }
        return all;
    }
};

/* Converts a data name to the name of an HDF5 link: percent-encoded where HDF5 or XDMF need it. */
inline std::string quoted(const std::string &name)
{
    std::string to;
    for (size_t i = 0; i < name.size(); i++)
        switch (name[i]) {
        case '%': to += "%25"; break;
        case '/': to += "%2F"; break;
        case ':': to += "%3A"; break;
        case '.': to += i == 0 ? "%2E" : "."; break;
        default: to += name[i];
        }
    return to;
}

inline std::string unquoted(const std::string &name)
{
    std::string to;
    for (size_t i = 0; i < name.size(); i++)
        if (name[i] == '%' && i + 2 < name.size() && std::isxdigit(name[i + 1]) &&
            std::isxdigit(name[i + 2])) {
            to += static_cast<char>(std::stoi(name.substr(i + 1, 2), nullptr, 16));
            i += 2;
        } else {
            to += name[i];
        }
    return to;
}

/* An id of HDF5, closed by the destructor. */
class id {
public:
    id(hid_t h, herr_t (*close)(hid_t), const std::string &what) : handle(h), end(close)
    {
        if (h < 0)
            throw error("HDF5: " + what);
    }
    ~id() { end(handle); }
    id(const id &) = delete;
    id &operator=(const id &) = delete;
    operator hid_t() const { return handle; }

private:
    hid_t handle;
    herr_t (*end)(hid_t);
};

/* An HDF5 driver for a back end's file. It withholds the file's first 8 bytes, HDF5's signature,
 * which are written when all other bytes are. */
class driver {
public:
    static constexpr std::array<unsigned char, 8> signature = {0x89, 'H',  'D',  'F',
                                                               '\r', '\n', 0x1a, '\n'};
    struct info {
        file *of;
    };

    static hid_t registered()
    {
        static const hid_t one = [] {
            static H5FD_class_t c;
            std::memset(&c, 0, sizeof c);
#if H5_VERSION_GE(1, 13, 2)
            c.version = H5FD_CLASS_VERSION;
            c.value = 600; /* in the range for private use */
#endif
            c.name = "forebay_mesh";
            c.maxaddr = (haddr_t{1} << 62) - 1;
            c.fc_degree = H5F_CLOSE_STRONG;
            c.fapl_size = sizeof(info);
            c.open = open;
            c.close = close;
            c.query = query;
            c.get_eoa = [](const H5FD_t *f, H5FD_mem_t) { return of(f)->eoa; };
            c.set_eoa = [](H5FD_t *f, H5FD_mem_t, haddr_t to) {
                return of(f)->eoa = to, herr_t{0};
            };
            c.get_eof = [](const H5FD_t *f, H5FD_mem_t) { return of(f)->eof; };
            c.read = read;
            c.write = write;
            c.truncate = truncate;
            for (auto &to : c.fl_map)
                to = H5FD_MEM_DEFAULT;
            return H5FDregister(&c);
        }();
        return one;
    }

private:
    struct opened {
        H5FD_t base; /* first: HDF5's own fields */
        file *backing;
        haddr_t eoa, eof;
    };
    static opened *of(const H5FD_t *f)
    {
        return reinterpret_cast<opened *>(const_cast<H5FD_t *>(f));
    }

    static H5FD_t *open(const char *, unsigned, hid_t fapl, haddr_t)
    {
        try {
            const auto *told = static_cast<const info *>(H5Pget_driver_info(fapl));
            auto *made = new opened{{}, told->of, 0, told->of->size()};
            return &made->base;
        } catch (const std::exception &) {
            return nullptr;
        }
    }
    static herr_t close(H5FD_t *f)
    {
        delete of(f);
        return 0;
    }
    static herr_t query(const H5FD_t *, unsigned long *flags)
    {
        *flags =
            H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE;
        return 0;
    }
    static herr_t read(H5FD_t *f, H5FD_mem_t, hid_t, haddr_t at, size_t size, void *to)
    {
        try {
            auto *bytes = static_cast<std::byte *>(to);
            const size_t n = of(f)->backing->read({bytes, size}, at);
            std::memset(bytes + n, 0, size - n);
            return 0;
        } catch (const std::exception &) {
            return -1;
        }
    }
    static herr_t write(H5FD_t *f, H5FD_mem_t, hid_t, haddr_t at, size_t size, const void *from)
    {
        try {
            const size_t held =
                at < signature.size() ? std::min<size_t>(size, signature.size() - at) : 0;
            of(f)->backing->write({static_cast<const std::byte *>(from) + held, size - held},
                                  at + held);
            of(f)->eof = std::max<haddr_t>(of(f)->eof, at + size);
            return 0;
        } catch (const std::exception &) {
            return -1;
        }
    }
    static herr_t truncate(H5FD_t *f, hid_t, hbool_t)
    {
        try {
            if (of(f)->eoa != of(f)->eof)
                of(f)->backing->truncate(of(f)->eoa);
            of(f)->eof = of(f)->eoa;
            return 0;
        } catch (const std::exception &) {
            return -1;
        }
    }
};

/* Turns HDF5's messages off until it is destroyed: exceptions have the needed text. */
class quiet {
public:
    quiet()
    {
        H5Eget_auto2(H5E_DEFAULT, &call, &with);
        H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    }
    ~quiet() { H5Eset_auto2(H5E_DEFAULT, call, with); }
    quiet(const quiet &) = delete;
    quiet &operator=(const quiet &) = delete;

private:
    H5E_auto2_t call;
    void *with;
};

inline hid_t type_of(number n)
{
    switch (n) {
    case number::f32: return H5T_IEEE_F32LE;
    case number::f64: return H5T_IEEE_F64LE;
    case number::i8: return H5T_STD_I8LE;
    case number::i16: return H5T_STD_I16LE;
    case number::i32: return H5T_STD_I32LE;
    case number::i64: return H5T_STD_I64LE;
    case number::u8: return H5T_STD_U8LE;
    case number::u16: return H5T_STD_U16LE;
    case number::u32: return H5T_STD_U32LE;
    default: return H5T_STD_U64LE;
    }
}

inline void number_attribute(hid_t on, const std::string &name, int32_t value)
{
    const id utf8(H5Pcreate(H5P_ATTRIBUTE_CREATE), H5Pclose, "a property list");
    H5Pset_char_encoding(utf8, H5T_CSET_UTF8);
    const id space(H5Screate(H5S_SCALAR), H5Sclose, "a scalar");
    const id made(H5Acreate2(on, name.c_str(), H5T_STD_I32LE, space, utf8, H5P_DEFAULT), H5Aclose,
                  "the attribute " + name);
    if (H5Awrite(made, H5T_NATIVE_INT32, &value) < 0)
        throw error("HDF5 can't write the attribute " + name);
}

inline constexpr const char *version_name = "forebay_mesh";
inline constexpr int32_t version = 1;

/* Writes the HDF5 metadata of a new file, and stores the offsets of all datasets in `all`. */
inline void create(file &f, contents &all)
{
    const quiet now;
    const id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "a property list");
    const driver::info told{&f};
    H5Pset_driver(access, driver::registered(), &told);
    H5Pset_alignment(access, 1 << 16, 1 << 12);
    H5Pset_meta_block_size(access, 1 << 16);
    const id h5(H5Fcreate("mesh", H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose,
                "the file can't be made");
    const id links(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "a property list");
    H5Pset_create_intermediate_group(links, 1);
    H5Pset_char_encoding(links, H5T_CSET_UTF8);
    const id early(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "a property list");
    H5Pset_layout(early, H5D_CONTIGUOUS);
    H5Pset_alloc_time(early, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(early, H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(early, false); /* so that equal meshes give equal bytes */
    number_attribute(h5, version_name, version);
    for (const char *name : {"/cells", "/point_data", "/partitions", "/markers"}) {
        const id group(H5Gcreate2(h5, name, links, H5P_DEFAULT, H5P_DEFAULT), H5Gclose,
                       std::string("the group ") + name);
        if (std::string(name) == "/markers")
            for (const auto &[marker, n] : all.marker_names)
                number_attribute(group, marker, n);
    }
    const auto made = [&](dataset &d) {
        const std::array<hsize_t, 2> shape = {d.rows, d.columns};
        const id space(H5Screate_simple(d.columns ? 2 : 1, shape.data(), nullptr), H5Sclose,
                       "a shape");
        const id one(
            H5Dcreate2(h5, d.path.c_str(), type_of(d.type), space, links, early, H5P_DEFAULT),
            H5Dclose, "the dataset " + d.path + " can't be made");
        const haddr_t at = H5Dget_offset(one);
        d.offset = at == HADDR_UNDEF ? nowhere : at;
    };
    const auto partition = [&](const std::string &name, const std::vector<int64_t> &parts) {
        dataset d{"/partitions/" + name, number::i64, parts.size()};
        made(d);
        f.write(std::as_bytes(std::span(parts)), d.offset);
    };
    partition("points", all.parts);
    for (const auto &c : all.cells)
        partition(c.type, c.parts);
    all.each(made);
    if (H5Fflush(h5, H5F_SCOPE_LOCAL) < 0)
        throw error("HDF5 can't write the metadata of the file", ENOSPC);
}

/* A mesh file that HDF5 has open for reading. */
class reader {
public:
    reader(file &f, const std::string &path)
        : named(path), size(f.size()), access(made(f)), h5(opened())
    {
    }

    contents describe()
    {
        if (H5Aexists(h5, version_name) <= 0)
            throw error(
                named +
                ": an HDF5 file, but no mesh: the attribute 'forebay_mesh' of / is missing");
        int32_t found = 0;
        {
            const id one(H5Aopen(h5, version_name, H5P_DEFAULT), H5Aclose, "an attribute");
            H5Aread(one, H5T_NATIVE_INT32, &found);
        }
        if (found != version)
            throw error(named + ": the layout has version " + std::to_string(found) +
                        ", and this Forebay reads 1");
        contents all;
        all.points = at("/points", 2);
        if (all.points.type != number::f64 || (all.points.columns != 2 && all.points.columns != 3))
            throw error(named + ": /points: rows of 2 or 3 doubles are needed");
        for (const auto &type : names("/cells", true)) {
            const std::string top = "/cells/" + type;
            contents_of_type c{type, at(top + "/nodes", 2)};
            if (c.nodes.type != number::i64 || c.nodes.columns != nodes_of(type))
                throw error(named + ": " + c.nodes.path + ": rows of " +
                            std::to_string(nodes_of(type)) + " indices of 64 bits are needed");
            if (exists(top + "/marker"))
                c.marker = at(top + "/marker", 1, c.nodes.rows);
            if (c.marker && c.marker->type != number::i32)
                throw error(named + ": " + c.marker->path + ": numbers of 32 bits are needed");
            for (const auto &name : names(top + "/data"))
                c.data.emplace_back(unquoted(name), at(top + "/data/" + name, 0, c.nodes.rows));
            all.cells.push_back(std::move(c));
        }
        for (const auto &name : names("/point_data"))
            all.point_data.emplace_back(unquoted(name),
                                        at("/point_data/" + name, 0, all.points.rows));
        if (exists("/markers"))
            markers(all);
        partitions(all);
        return all;
    }

    /* Reads rows by HDF5, for datasets that aren't contiguous or have another byte order. */
    void read(const dataset &d, uint64_t from, uint64_t count, std::byte *to) const
    {
        const id one(H5Dopen2(h5, d.path.c_str(), H5P_DEFAULT), H5Dclose, d.path);
        const id space(H5Dget_space(one), H5Sclose, d.path);
        const std::array<hsize_t, 2> start = {from, 0}, shape = {count, d.columns};
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, shape.data(), nullptr);
        const id memory(H5Screate_simple(d.columns ? 2 : 1, shape.data(), nullptr), H5Sclose,
                        d.path);
        if (H5Dread(one, type_of(d.type), memory, space, H5P_DEFAULT, to) < 0)
            throw error(named + ": " + d.path + ": HDF5 can't read it");
    }

private:
    static hid_t made(file &f)
    {
        const hid_t a = H5Pcreate(H5P_FILE_ACCESS);
        const driver::info told{&f};
        H5Pset_driver(a, driver::registered(), &told);
        return a;
    }
    hid_t opened() const
    {
        const hid_t f = H5Fopen("mesh", H5F_ACC_RDONLY, access);
        if (f < 0)
            throw error(named +
                        ": HDF5 can't read it, it is damaged, cut, or another kind of file");
        return f;
    }
    bool exists(const std::string &path) const
    {
        for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
            if (H5Lexists(h5, path.substr(0, slash).c_str(), H5P_DEFAULT) <= 0)
                return false;
            if (slash == std::string::npos)
                return true;
        }
    }
    std::vector<std::string> names(const std::string &group, bool needed = false) const
    {
        if (!exists(group)) {
            if (needed)
                throw error(named + ": " + group + ": the group is missing");
            return {};
        }
        const id g(H5Gopen2(h5, group.c_str(), H5P_DEFAULT), H5Gclose,
                   named + ": " + group + ": a group is needed");
        std::vector<std::string> all;
        const auto each = [](hid_t, const char *name, const H5L_info_t *, void *to) -> herr_t {
            static_cast<std::vector<std::string> *>(to)->emplace_back(name);
            return 0;
        };
        H5Literate(g, H5_INDEX_NAME, H5_ITER_INC, nullptr, each, &all);
        return all;
    }
    dataset at(const std::string &path, int dims, std::optional<uint64_t> rows = {}) const
    {
        if (!exists(path))
            throw error(named + ": " + path + ": the dataset is missing");
        const id one(H5Dopen2(h5, path.c_str(), H5P_DEFAULT), H5Dclose,
                     named + ": " + path + ": a dataset is needed");
        const id space(H5Dget_space(one), H5Sclose, path), type(H5Dget_type(one), H5Tclose, path);
        dataset d{path};
        std::array<hsize_t, 2> shape = {0, 0};
        const int found = H5Sget_simple_extent_ndims(space);
        const size_t bytes = H5Tget_size(type);
        const H5T_class_t kind = H5Tget_class(type);
        if (found < 1 || found > 2 || (dims && found != dims) ||
            (kind != H5T_INTEGER && kind != H5T_FLOAT) || bytes > 8 || (bytes & (bytes - 1)) != 0 ||
            (kind == H5T_FLOAT && bytes < 4))
            throw error(named + ": " + path + ": it is no array of this layout");
        H5Sget_simple_extent_dims(space, shape.data(), nullptr);
        d.rows = shape[0];
        d.columns = found == 2 ? shape[1] : 0;
        const auto log = static_cast<int>(bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3);
        d.type = kind == H5T_FLOAT
                     ? (bytes == 4 ? number::f32 : number::f64)
                     : static_cast<number>((H5Tget_sign(type) == H5T_SGN_NONE ? 6 : 2) + log);
        if (rows && d.rows != *rows)
            throw error(named + ": " + path + ": it has " + std::to_string(d.rows) + " rows, and " +
                        std::to_string(*rows) + " are needed");
        const haddr_t where = H5Dget_offset(one);
        if (where != HADDR_UNDEF && H5Tget_order(type) != H5T_ORDER_BE) {
            d.offset = where;
            if (d.offset + d.rows * d.row_bytes() > size)
                throw error(named + ": " + path + ": the file is cut");
        }
        return d;
    }
    void markers(contents &all) const
    {
        const id group(H5Gopen2(h5, "/markers", H5P_DEFAULT), H5Gclose, "/markers");
        std::vector<std::string> found;
        const auto each = [](hid_t, const char *name, const H5A_info_t *, void *to) -> herr_t {
            static_cast<std::vector<std::string> *>(to)->emplace_back(name);
            return 0;
        };
        H5Aiterate2(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, each, &found);
        for (const auto &name : found) {
            const id one(H5Aopen(group, name.c_str(), H5P_DEFAULT), H5Aclose, name);
            H5Aread(one, H5T_NATIVE_INT32, &all.marker_names[name]);
        }
    }
    /* Reads the partition tables. Reads none if one is missing or doesn't fit the mesh. */
    void partitions(contents &all) const
    {
        const auto table = [&](const std::string &name, uint64_t rows) {
            std::vector<int64_t> parts;
            const std::string path = "/partitions/" + name;
            if (!exists(path))
                return parts;
            const dataset d = at(path, 1);
            if (d.type == number::i64 && d.rows) {
                parts.resize(d.rows);
                read(d, 0, d.rows, reinterpret_cast<std::byte *>(parts.data()));
            }
            if (std::accumulate(parts.begin(), parts.end(), int64_t{0}) !=
                    static_cast<int64_t>(rows) ||
                std::any_of(parts.begin(), parts.end(), [](int64_t n) { return n < 0; }))
                parts.clear();
            return parts;
        };
        all.parts = table("points", all.points.rows);
        bool fit = !all.parts.empty();
        for (auto &c : all.cells) {
            c.parts = table(c.type, c.nodes.rows);
            fit = fit && c.parts.size() == all.parts.size();
        }
        if (!fit) {
            all.parts.clear();
            for (auto &c : all.cells)
                c.parts.clear();
        }
    }
    quiet now;
    std::string named;
    uint64_t size;
    struct closes_list {
        closes_list(hid_t i) : one(i) {}
        ~closes_list() { H5Pclose(one); }
        closes_list(const closes_list &) = delete;
        closes_list &operator=(const closes_list &) = delete;
        operator hid_t() const { return one; }
        hid_t one;
    } access;
    struct closes_file {
        closes_file(hid_t i) : one(i) {}
        ~closes_file() { H5Fclose(one); }
        closes_file(const closes_file &) = delete;
        closes_file &operator=(const closes_file &) = delete;
        operator hid_t() const { return one; }
        hid_t one;
    } h5;
};

/* The rows of a rank's points in the file. */
struct numbering {
    int64_t first = 0;
    size_t owned = 0;
    std::vector<int64_t> table = {}; /* empty: first + index */
    std::optional<std::vector<size_t>> chosen =
        {}; /* the points that this rank owns; no value: the first `owned` ones */
};

inline std::vector<int64_t> counts(const ranks &all, int64_t mine)
{
    std::vector<int64_t> found;
    for (const auto &text : all.gather(std::to_string(mine)))
        found.push_back(std::stoll(text));
    return found;
}

/* As Python's numbering.py: all ranks send a point's id to its rendezvous rank, id mod size, which
 * chooses the owner and answers with the point's row. */
inline numbering by_rendezvous(const ranks &all, std::span<const int64_t> ids,
                          std::optional<size_t> owned)
{
    const size_t size = all.size(), candidates = owned.value_or(ids.size());
    const auto meeting = [&](int64_t i) {
        const auto n = static_cast<int64_t>(size);
        return static_cast<size_t>((i % n + n) % n);
    };
    together(all, [&] {
        std::vector<int64_t> sorted(ids.begin(), ids.end());
        std::sort(sorted.begin(), sorted.end());
        const auto twin = std::adjacent_find(sorted.begin(), sorted.end());
        if (twin != sorted.end())
            throw error("point_ids: point " + std::to_string(*twin) +
                        " is there twice on one rank");
    });
    std::vector<std::vector<size_t>> places(size);
    std::vector<std::vector<int64_t>> sent(size);
    for (size_t r = 0; r < size; r++)
        sent[r].push_back(owned ? 1 : 0);
    for (size_t i = 0; i < candidates; i++) {
        places[meeting(ids[i])].push_back(i);
        sent[meeting(ids[i])].push_back(ids[i]);
    }
    const auto came = all.exchange(sent);
    struct has {
        int64_t row;
        size_t rank;
        bool declared;
    };
    std::map<int64_t, has> known;
    std::vector<std::vector<int64_t>> won(size);
    together(all, [&] {
        for (size_t r = 0; r < size; r++)
            for (size_t i = 1; i < came[r].size(); i++) {
                const bool declared = came[r][0] != 0;
                const auto [at, fresh] = known.emplace(came[r][i], has{-1, r, declared});
                if (!fresh && declared && at->second.declared)
                    throw error("point_ids: ranks " + std::to_string(at->second.rank) + " and " +
                                std::to_string(r) + " both own point " +
                                std::to_string(came[r][i]));
                won[r].push_back(fresh ? 1 : 0);
            }
    });
    const auto mine = all.exchange(won);
    numbering n;
    std::vector<bool> chosen(ids.size());
    for (size_t r = 0; r < size; r++)
        for (size_t i = 0; i < places[r].size(); i++)
            chosen[places[r][i]] = mine[r][i] != 0;
    n.chosen.emplace();
    for (size_t i = 0; i < ids.size(); i++)
        if (chosen[i])
            n.chosen->push_back(i);
    n.owned = n.chosen->size();
    const auto before = counts(all, static_cast<int64_t>(n.owned));
    n.first = std::accumulate(before.begin(),
                              before.begin() + static_cast<std::ptrdiff_t>(all.rank()), int64_t{0});
    n.table.assign(ids.size(), -1);
    int64_t next = n.first;
    for (const size_t i : *n.chosen)
        n.table[i] = next++;
    for (auto &s : sent)
        s.clear();
    for (size_t r = 0; r < size; r++)
        for (const size_t i : places[r])
            sent[r].push_back(n.table[i]);
    const auto rows = all.exchange(sent);
    for (size_t r = 0; r < size; r++)
        for (size_t i = 0; i < rows[r].size(); i++)
            if (rows[r][i] >= 0)
                known[came[r][i + 1]].row = rows[r][i];
    /* Asks for the rows of ghosts: points that other ranks own. */
    std::vector<std::vector<size_t>> asking(size);
    std::vector<std::vector<int64_t>> questions(size);
    for (size_t i = 0; i < ids.size(); i++)
        if (n.table[i] < 0) {
            asking[meeting(ids[i])].push_back(i);
            questions[meeting(ids[i])].push_back(ids[i]);
        }
    auto answers = all.exchange(questions);
    for (auto &list : answers)
        for (int64_t &i : list) {
            const auto at = known.find(i);
            i = at == known.end() ? -1 : at->second.row;
        }
    answers = all.exchange(answers);
    together(all, [&] {
        for (size_t r = 0; r < size; r++)
            for (size_t i = 0; i < asking[r].size(); i++) {
                n.table[asking[r][i]] = answers[r][i];
                if (answers[r][i] < 0)
                    throw error("point_ids: no rank owns point " +
                                std::to_string(ids[asking[r][i]]));
            }
    });
    return n;
}

inline numbering numbered(const ranks &all, const view &v)
{
    const size_t count = v.points.size() / v.dimension;
    const auto points = counts(all, static_cast<int64_t>(count));
    const auto have = counts(all, v.point_ids.empty() ? 0 : 1);
    const auto owned = counts(all, v.owned ? static_cast<int64_t>(*v.owned) : -1);
    const auto before = [&](const std::vector<int64_t> &l) {
        return std::accumulate(l.begin(), l.begin() + static_cast<std::ptrdiff_t>(all.rank()),
                               int64_t{0});
    };
    if (std::none_of(have.begin(), have.end(), [](int64_t n) { return n != 0; }) ||
        (all.size() == 1 && v.owned.value_or(count) == count))
        return {before(points), count};
    bool told = true;
    std::vector<int64_t> own(points);
    for (size_t r = 0; r < points.size(); r++) {
        if (points[r] && !have[r])
            throw error("point_ids: rank " + std::to_string(r) +
                        " has none, and other ranks have some");
        told = told && (owned[r] >= 0 || !points[r]);
        own[r] = owned[r] >= 0 ? owned[r] : points[r];
    }
    if (told) {
        numbering n{before(own), static_cast<size_t>(own[all.rank()])};
        const int64_t total = std::accumulate(own.begin(), own.end(), int64_t{0});
        bool straight = true;
        for (size_t i = 0; i < count; i++)
            straight =
                straight && (i < n.owned ? v.point_ids[i] == n.first + static_cast<int64_t>(i)
                                         : v.point_ids[i] >= 0 && v.point_ids[i] < total);
        const auto agreed = counts(all, straight ? 1 : 0);
        if (std::all_of(agreed.begin(), agreed.end(), [](int64_t s) { return s != 0; })) {
            n.table.assign(v.point_ids.begin(), v.point_ids.end());
            return n;
        }
    }
    return by_rendezvous(all, v.point_ids, v.owned);
}

inline void check_fields(const std::vector<field> &fields, size_t rows, const std::string &of)
{
    for (const auto &f : fields) {
        if (f.name.empty() || f.name.size() > 255)
            throw error("a name of data: a text of 1 to 255 bytes is needed");
        if (f.bytes.size() != rows * f.row_bytes())
            throw error("data '" + f.name + "': it has " + std::to_string(f.bytes.size()) +
                        " bytes, and " + of + " needs " + std::to_string(rows * f.row_bytes()));
    }
}

inline void check(const view &v)
{
    if (v.dimension != 2 && v.dimension != 3)
        throw error("points: 2 or 3 coordinates are needed, not " + std::to_string(v.dimension));
    if (v.points.size() % v.dimension)
        throw error("points: " + std::to_string(v.points.size()) + " coordinates are no rows");
    const size_t count = v.points.size() / v.dimension;
    check_fields(v.point_data, count, "the array of points");
    if (!v.point_ids.empty() && v.point_ids.size() != count)
        throw error("point_ids: " + std::to_string(v.point_ids.size()) + " for " +
                    std::to_string(count) + " points");
    if (v.owned && (*v.owned > count || (*v.owned < count && v.point_ids.empty())))
        throw error("owned: it is " + std::to_string(*v.owned) + " of " + std::to_string(count) +
                    " points; ghosts need point_ids");
    std::vector<std::string> seen;
    for (const auto &b : v.cells) {
        const size_t each = nodes_of(b.type), rows = b.nodes.size() / each;
        if (std::find(seen.begin(), seen.end(), b.type) != seen.end())
            throw error("cells of type " + b.type + ": they are there in two blocks; join them");
        seen.push_back(b.type);
        if (b.nodes.size() % each)
            throw error("cells of type " + b.type + ": " + std::to_string(b.nodes.size()) +
                        " indices are no rows of " + std::to_string(each));
        for (size_t i = 0; i < b.nodes.size(); i++)
            if (b.nodes[i] < 0 || static_cast<uint64_t>(b.nodes[i]) >= count)
                throw error("cells of type " + b.type + ": cell " + std::to_string(i / each) +
                            " has point " + std::to_string(b.nodes[i]) + ", and there are " +
                            std::to_string(count) + " points");
        if (!b.markers.empty() && b.markers.size() != rows)
            throw error("markers of " + b.type + ": " + std::to_string(b.markers.size()) + " for " +
                        std::to_string(rows) + " cells");
        check_fields(b.data, rows, "the cell type '" + b.type + "'");
    }
}

/* Merges the contents of all ranks to those of the whole file. The result is equal on all ranks. */
inline contents merged(const std::vector<contents> &parts)
{
    contents all;
    all.points = {"/points", number::f64, 0, 3};
    bool dimension = false;
    const auto join = [](auto &to, const auto &from, const std::string &top, const std::string &of,
                         size_t rank, bool rows) {
        for (const auto &one : from) {
            const auto &d = one.second;
            auto at = std::find_if(to.begin(), to.end(),
                                   [&](const auto &t) { return t.first == one.first; });
            if (at == to.end()) {
                to.push_back(one);
                to.back().second.path = top + quoted(one.first);
                to.back().second.rows = 0;
            } else if (rows && (at->second.type != d.type || at->second.columns != d.columns)) {
                throw error("data '" + one.first + "' of " + of + ": rank " + std::to_string(rank) +
                            " has another type or number of columns than a lower rank");
            }
        }
    };
    const auto lacks = [](const auto &to, const auto &from, const std::string &of, size_t rank) {
        for (const auto &t : to)
            if (std::none_of(from.begin(), from.end(),
                             [&](const auto &f) { return f.first == t.first; }))
                throw error("data '" + t.first + "' of " + of + ": rank " + std::to_string(rank) +
                            " doesn't have it; each rank with rows has to");
    };
    for (size_t r = 0; r < parts.size(); r++) {
        const contents &p = parts[r];
        if (p.points.rows || !p.point_data.empty()) {
            if (dimension && all.points.columns != p.points.columns)
                throw error("points: rank " + std::to_string(r) +
                            " has another number of coordinates than a lower rank");
            all.points.columns = p.points.columns;
            dimension = true;
        }
        all.points.rows += p.points.rows;
        all.parts.push_back(static_cast<int64_t>(p.points.rows));
        join(all.point_data, p.point_data, "/point_data/", "points", r, p.points.rows != 0);
        for (const auto &[name, n] : p.marker_names)
            if (const auto [at, fresh] = all.marker_names.emplace(name, n);
                !fresh && at->second != n)
                throw error("marker '" + name + "': rank " + std::to_string(r) + " has number " +
                            std::to_string(n) + ", a lower rank " + std::to_string(at->second));
    }
    for (const auto &[type, nodes] : cell_types()) {
        contents_of_type c{type, {"/cells/" + type + "/nodes", number::i64, 0, nodes}};
        bool there = false;
        for (size_t r = 0; r < parts.size(); r++) {
            int64_t rows = 0;
            for (const auto &p : parts[r].cells)
                if (p.type == type) {
                    there = true;
                    rows = static_cast<int64_t>(p.nodes.rows);
                    if (p.marker)
                        c.marker = dataset{"/cells/" + type + "/marker", number::i32};
                    join(c.data, p.data, "/cells/" + type + "/data/", type, r, rows != 0);
                }
            c.parts.push_back(rows);
            c.nodes.rows += static_cast<uint64_t>(rows);
        }
        for (size_t r = 0; r < parts.size(); r++)
            for (const auto &p : parts[r].cells)
                if (p.type == type && p.nodes.rows)
                    lacks(c.data, p.data, type, r);
        if (c.marker)
            c.marker->rows = c.nodes.rows;
        for (auto &[name, d] : c.data)
            d.rows = c.nodes.rows;
        if (there)
            all.cells.push_back(std::move(c));
    }
    for (size_t r = 0; r < parts.size(); r++)
        if (parts[r].points.rows)
            lacks(all.point_data, parts[r].point_data, "points", r);
    for (auto &[name, d] : all.point_data)
        d.rows = all.points.rows;
    return all;
}

inline contents described(const view &v, size_t owned)
{
    contents mine;
    mine.points = {"/points", number::f64, owned, v.dimension};
    mine.marker_names = v.marker_names;
    for (const auto &f : v.point_data)
        mine.point_data.emplace_back(f.name, dataset{"", f.type, owned, f.columns});
    for (const auto &b : v.cells) {
        const uint64_t rows = b.nodes.size() / nodes_of(b.type);
        contents_of_type c{b.type, {"", number::i64, rows, nodes_of(b.type)}};
        if (!b.markers.empty())
            c.marker = dataset{};
        for (const auto &f : b.data)
            c.data.emplace_back(f.name, dataset{"", f.type, rows, f.columns});
        mine.cells.push_back(std::move(c));
    }
    return mine;
}

inline uint64_t before(const std::vector<int64_t> &parts, size_t rank)
{
    return static_cast<uint64_t>(std::accumulate(
        parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(rank), int64_t{0}));
}

inline void write_part(file &f, const contents &all, const view &v, const numbering &n, size_t rank)
{
    const auto put = [&](const dataset &d, uint64_t row, std::span<const std::byte> bytes) {
        if (!bytes.empty())
            f.write(bytes, d.offset + row * d.row_bytes());
    };
    const auto own = [&](const dataset &d, std::span<const std::byte> bytes) {
        const size_t each = d.row_bytes();
        if (!n.chosen)
            return put(d, static_cast<uint64_t>(n.first), bytes.first(n.owned * each));
        std::vector<std::byte> rows(n.owned * each);
        for (size_t i = 0; i < n.owned; i++)
            std::memcpy(rows.data() + i * each, bytes.data() + (*n.chosen)[i] * each, each);
        put(d, static_cast<uint64_t>(n.first), rows);
    };
    own(all.points, std::as_bytes(v.points));
    for (const auto &[name, d] : all.point_data)
        for (const auto &p : v.point_data)
            if (p.name == name && n.owned)
                own(d, p.bytes);
    for (const auto &c : all.cells)
        for (const auto &b : v.cells) {
            if (b.type != c.type || b.nodes.empty())
                continue;
            const uint64_t row = before(c.parts, rank);
            if (n.table.empty() && n.first == 0) {
                put(c.nodes, row, std::as_bytes(b.nodes));
            } else {
                /* In pieces that fit into a core's cache. */
                const size_t step =
                    std::max<size_t>((size_t{1} << 18) / c.nodes.columns, 1) * c.nodes.columns;
                std::vector<int64_t> piece(std::min(step, b.nodes.size()));
                for (size_t at = 0; at < b.nodes.size(); at += step) {
                    const auto some = b.nodes.subspan(at, std::min(step, b.nodes.size() - at));
                    for (size_t i = 0; i < some.size(); i++)
                        piece[i] = n.table.empty() ? some[i] + n.first
                                                   : n.table[static_cast<size_t>(some[i])];
                    put(c.nodes, row + at / c.nodes.columns,
                        std::as_bytes(std::span(piece).first(some.size())));
                }
            }
            if (c.marker && !b.markers.empty())
                put(*c.marker, row, std::as_bytes(b.markers));
            else if (c.marker)
                put(*c.marker, row,
                    std::vector<std::byte>(b.nodes.size() / c.nodes.columns * sizeof(int32_t)));
            for (const auto &[name, d] : c.data)
                for (const auto &p : b.data)
                    if (p.name == name)
                        put(d, row, p.bytes);
        }
}

/* Returns the text of the XDMF file, equal to that of Python's xdmf.py. */
inline std::string xdmf(const contents &all, const std::string &path)
{
    static const std::map<std::string, std::string> topologies = {
        {"vertex", "Polyvertex"},
        {"line", "Polyline"},
        {"line3", "Edge_3"},
        {"quad", "Quadrilateral"},
        {"quad8", "Quadrilateral_8"},
        {"quad9", "Quadrilateral_9"},
        {"tetra", "Tetrahedron"},
        {"tetra10", "Tetrahedron_10"},
        {"triangle", "Triangle"},
        {"triangle6", "Triangle_6"},
        {"pyramid", "Pyramid"},
        {"pyramid13", "Pyramid_13"},
        {"wedge", "Wedge"},
        {"wedge15", "Wedge_15"},
        {"wedge18", "Wedge_18"},
        {"hexahedron", "Hexahedron"},
        {"hexahedron20", "Hexahedron_20"},
        {"hexahedron24", "Hexahedron_24"},
        {"hexahedron27", "Hexahedron_27"}};
    const auto safe = [](const std::string &text) {
        std::string to;
        for (const char c : text)
            to += c == '&'   ? "&amp;"
                  : c == '<' ? "&lt;"
                  : c == '>' ? "&gt;"
                  : c == '"' ? "&quot;"
                             : std::string(1, c);
        return to;
    };
    const std::string name = path.substr(path.rfind('/') + 1);
    const auto item = [&](const dataset &d) {
        const char *kind = d.type <= number::f64 ? "Float" : d.type <= number::i64 ? "Int" : "UInt";
        return "<DataItem DataType=\"" + std::string(kind) + "\" Precision=\"" +
               std::to_string(size_of(d.type)) + "\" Dimensions=\"" + std::to_string(d.rows) +
               (d.columns ? " " + std::to_string(d.columns) : "") + "\" Format=\"HDF\">" +
               safe(name + ":" + d.path) + "</DataItem>";
    };
    const auto attribute = [&](const std::string &of, const char *center, const dataset &d) {
        const char *kind = d.columns <= 1 ? "Scalar" : "Vector";
        return "<Attribute Name=\"" + safe(of) + "\" AttributeType=\"" + kind + "\" Center=\"" +
               center + "\">" + item(d) + "</Attribute>\n";
    };
    std::string grids;
    size_t count = 0;
    for (const auto &c : all.cells) {
        if (!c.nodes.rows)
            continue;
        count++;
        grids += "<Grid Name=\"" + c.type + "\" GridType=\"Uniform\">\n<Geometry GeometryType=\"" +
                 (all.points.columns == 3 ? "XYZ" : "XY") + "\">" + item(all.points) +
                 "</Geometry>\n<Topology TopologyType=\"" + topologies.at(c.type) +
                 "\" NumberOfElements=\"" + std::to_string(c.nodes.rows) + "\"" +
                 (c.type == "vertex" || c.type == "line"
                      ? " NodesPerElement=\"" + std::to_string(c.nodes.columns) + "\""
                      : "") +
                 ">" + item(c.nodes) + "</Topology>\n";
        for (const auto &[of, d] : all.point_data)
            grids += attribute(of, "Node", d);
        bool taken = false;
        for (const auto &[of, d] : c.data) {
            grids += attribute(of, "Cell", d);
            taken = taken || of == "marker";
        }
        if (c.marker && !taken)
            grids += attribute("marker", "Cell", *c.marker);
        grids += "</Grid>\n";
    }
    if (count != 1)
        grids = "<Grid Name=\"mesh\" GridType=\"Collection\" CollectionType=\"Spatial\">\n" +
                grids + "</Grid>\n";
    return "<?xml version=\"1.0\"?>\n<Xdmf Version=\"3.0\">\n<Domain>\n" + grids +
           "</Domain>\n</Xdmf>\n";
}

inline std::string xdmf_path(const std::string &path)
{
    for (const char *end : {".h5", ".hdf5"})
        if (path.ends_with(end))
            return path.substr(0, path.size() - std::strlen(end)) + ".xdmf";
    return path + ".xdmf";
}

/* Reads rows of a file for one rank. */
class rows {
public:
    rows(file &f, const std::string &path) : of(f), named(path) {}
    void read(const dataset &d, uint64_t first_row, uint64_t count, std::byte *to)
    {
        if (!count || !d.row_bytes())
            return;
        if (d.offset == nowhere)
            return reader(of, named).read(d, first_row, count, to);
        const size_t wanted = count * d.row_bytes();
        if (of.read({to, wanted}, d.offset + first_row * d.row_bytes()) != wanted)
            throw error(named + ": " + d.path + ": the file is cut");
    }
    /* Reads the rows `which`, which ascend. Rows with small gaps between them are one read. */
    void read_some(const dataset &d, std::span<const int64_t> which, std::byte *to)
    {
        const auto each = static_cast<int64_t>(d.row_bytes()),
                   near = std::max<int64_t>((1 << 14) / each, 1);
        const int64_t longest = std::max<int64_t>((1 << 24) / each, 1);
        std::vector<std::byte> piece;
        for (size_t begin = 0, end; begin < which.size(); begin = end) {
            for (end = begin + 1; end < which.size(); end++)
                if (which[end] - which[end - 1] > near || which[end] - which[begin] >= longest)
                    break;
            piece.resize(static_cast<size_t>((which[end - 1] + 1 - which[begin]) * each));
            read(d, static_cast<uint64_t>(which[begin]),
                 static_cast<uint64_t>(which[end - 1] + 1 - which[begin]), piece.data());
            for (size_t i = begin; i < end; i++, to += each)
                std::memcpy(to, piece.data() + (which[i] - which[begin]) * each,
                            static_cast<size_t>(each));
        }
    }

private:
    file &of;
    std::string named;
};

inline part read_part(file &f, const std::string &path, const contents &all, const ranks &of,
                      bool even)
{
    const size_t rank = of.rank(), size = of.size();
    const auto range = [&](uint64_t total,
                           const std::vector<int64_t> &parts) -> std::pair<uint64_t, uint64_t> {
        if (!even && !parts.empty() && size <= parts.size()) {
            const uint64_t from = before(parts, rank * parts.size() / size),
                           to = before(parts, (rank + 1) * parts.size() / size);
            return {from, to - from};
        }
        return {total * rank / size, total * (rank + 1) / size - total * rank / size};
    };
    rows from(f, path);
    part p;
    p.dimension = all.points.columns;
    p.marker_names = all.marker_names;
    const auto points = range(all.points.rows, all.parts);
    const uint64_t first_point = points.first, owned = points.second;
    const auto low = static_cast<int64_t>(first_point),
               high = static_cast<int64_t>(first_point + owned);
    std::vector<int64_t> ghosts;
    const auto fields = [&](const auto &named, uint64_t row, uint64_t count,
                            std::vector<owned_field> &to) {
        for (const auto &[name, d] : named) {
            owned_field one{name, d.type, d.columns, std::vector<std::byte>(count * d.row_bytes())};
            from.read(d, row, count, one.bytes.data());
            to.push_back(std::move(one));
        }
    };
    for (const auto &c : all.cells) {
        const auto [row, count] = range(c.nodes.rows, c.parts);
        owned_block b{c.type,
                      std::vector<int64_t>(count * c.nodes.columns),
                      {},
                      {},
                      static_cast<int64_t>(row)};
        from.read(c.nodes, row, count, reinterpret_cast<std::byte *>(b.nodes.data()));
        for (const int64_t i : b.nodes) {
            if (i < 0 || static_cast<uint64_t>(i) >= all.points.rows)
                throw error(path + ": a cell has point " + std::to_string(i) + ", and there are " +
                            std::to_string(all.points.rows) + " points");
            if (i < low || i >= high)
                ghosts.push_back(i);
        }
        if (c.marker) {
            b.markers.resize(count);
            from.read(*c.marker, row, count, reinterpret_cast<std::byte *>(b.markers.data()));
        }
        fields(c.data, row, count, b.data);
        p.cells.push_back(std::move(b));
    }
    std::sort(ghosts.begin(), ghosts.end());
    ghosts.erase(std::unique(ghosts.begin(), ghosts.end()), ghosts.end());
    for (auto &b : p.cells)
        for (int64_t &i : b.nodes)
            i = i >= low && i < high
                    ? i - low
                    : high - low +
                          (std::lower_bound(ghosts.begin(), ghosts.end(), i) - ghosts.begin());
    const auto with_ghosts = [&](const dataset &d, std::byte *to) {
        from.read(d, first_point, owned, to);
        from.read_some(d, ghosts, to + owned * d.row_bytes());
    };
    const size_t count = owned + ghosts.size();
    p.points.resize(count * p.dimension);
    with_ghosts(all.points, reinterpret_cast<std::byte *>(p.points.data()));
    for (const auto &[name, d] : all.point_data) {
        owned_field one{name, d.type, d.columns, std::vector<std::byte>(count * d.row_bytes())};
        with_ghosts(d, one.bytes.data());
        p.point_data.push_back(std::move(one));
    }
    p.owned = owned;
    p.point_ids.resize(owned);
    std::iota(p.point_ids.begin(), p.point_ids.end(), low);
    p.point_ids.insert(p.point_ids.end(), ghosts.begin(), ghosts.end());
    return p;
}

} // namespace detail

/* Writes a mesh and, beside it, an XDMF file. All ranks call it, each with its part. Throws error
 * on all ranks for an invalid mesh (the error names the array) or a file that can't be written. */
inline void write(const interface &mesh, const std::string &path, backend &by,
                  const ranks &all = single())
{
    view v;
    detail::together(all, [&] {
        v = mesh.to_forebay();
        detail::check(v);
    });
    const detail::numbering n = detail::numbered(all, v);
    std::vector<detail::contents> parts;
    for (const auto &text : all.gather(detail::described(v, n.owned).pack()))
        parts.push_back(detail::contents::unpack(text));
    detail::contents contents = detail::merged(parts);
    std::unique_ptr<file> made;
    std::string partial;
    try {
        partial = detail::first(all, [&] {
            std::random_device random;
            char unique[9];
            std::snprintf(unique, sizeof unique, "%08x", random());
            const std::string name = by.partial(path, unique);
            made = by.create(name);
            partial = name;
            return name;
        });
        const std::string offsets = detail::first(all, [&] {
            detail::create(*made, contents);
            return contents.pack();
        });
        contents = detail::contents::unpack(offsets);
        detail::together(all, [&] {
            const auto f = by.open(partial, true);
            detail::write_part(*f, contents, v, n, all.rank());
            f->close();
        });
        detail::first(all, [&] {
            made->write(std::as_bytes(std::span(detail::driver::signature)), 0);
            by.seal(*made, partial, path);
            return "";
        });
    } catch (...) {
        if (made) {
            made.reset();
            by.discard(partial);
        }
        throw;
    }
    detail::first(all, [&] {
        const std::string text = detail::xdmf(contents, path), beside = detail::xdmf_path(path);
        std::string name = by.partial(beside, "xdmf");
        by.discard(name);
        const auto f = by.create(name);
        f->write(std::as_bytes(std::span(text)), 0);
        by.seal(*f, name, beside);
        return "";
    });
}

/* How read() distributes rows over ranks. `stored`: each rank gets a part that a rank has written,
 * or several parts if fewer ranks read; if more ranks read, as `even`. `even`: evenly. */
enum class split { stored, even };

/* Reads a file into a mesh. All ranks call it, and each gets a part. Throws error, on all ranks. */
inline void read(interface &mesh, const std::string &path, backend &by, const ranks &all = single(),
                 split how = split::stored)
{
    const auto contents = detail::contents::unpack(detail::first(all, [&] {
        const auto f = by.open_alone(path);
        return detail::reader(*f, path).describe().pack();
    }));
    part p;
    detail::together(all, [&] {
        const auto f = by.open(path, false);
        p = detail::read_part(*f, path, contents, all, how == split::even);
        f->close();
    });
    mesh.from_forebay(std::move(p));
}

} // namespace forebay::mesh

#endif
