/* One rank of a job that writes and reads the mesh of ../py/mesh.py with mesh.hpp:
 *
 *     mesh write|read|fail BACKEND PATH
 *
 * Without MPI (-DWITHOUT_MPI) it is a single process. */
#ifndef WITHOUT_MPI
#include <mpi.h>
#endif

#include <forebay/mesh.hpp>

#include <cstdlib>
#include <iostream>
#include <set>

namespace fm = forebay::mesh;

static void require(bool holds, const char *what, int line)
{
    if (!holds)
        throw std::runtime_error("line " + std::to_string(line) + ": not " + what);
}
#define CHECK(x) require((x), #x, __LINE__)

constexpr int64_t N = 24;

static std::array<int64_t, 8> corners(int64_t cell)
{
    const int64_t x = (N + 1) * (N + 1), y = N + 1, z = 1;
    const int64_t low = cell / (N * N) * x + cell / N % N * y + cell % N;
    return {low, low + x, low + x + y, low + y, low + z, low + x + z, low + x + y + z, low + y + z};
}

static std::array<int64_t, 4> side(int64_t cell)
{
    const auto c = corners(cell);
    return {c[0], c[3], c[7], c[4]};
}

static double coordinate(int64_t point, size_t axis)
{
    const std::array<int64_t, 3> of = {point / ((N + 1) * (N + 1)), point / (N + 1) % (N + 1),
                                       point % (N + 1)};
    return static_cast<double>(of[axis]) / N;
}

static std::vector<std::byte> bytes(const std::vector<double> &from)
{
    const auto all = std::as_bytes(std::span(from));
    return {all.begin(), all.end()};
}

static fm::part part(const fm::ranks &all)
{
    const auto rank = static_cast<int64_t>(all.rank()), size = static_cast<int64_t>(all.size());
    const auto from = [&](int64_t total, int64_t r) { return r * total / size; };
    fm::part p;
    fm::owned_block hexes{"hexahedron"}, quads{"quad"};
    std::vector<double> q;
    std::set<int64_t> points;
    for (int64_t c = from(N * N * N, rank); c < from(N * N * N, rank + 1); c++) {
        for (const int64_t i : corners(c))
            hexes.nodes.push_back(i), points.insert(i);
        for (int k = 0; k < 6; k++)
            q.push_back(static_cast<double>(c) + k / 8.0);
    }
    for (int64_t c = from(N * N, rank); c < from(N * N, rank + 1); c++) {
        for (const int64_t i : side(c))
            quads.nodes.push_back(i), points.insert(i);
        quads.markers.push_back(static_cast<int32_t>(c % 3));
    }
    hexes.data.push_back({"q", fm::number::f64, 6, bytes(q)});
    const std::vector<int64_t> ids(points.begin(), points.end());
    for (auto *b : {&hexes, &quads})
        for (int64_t &i : b->nodes)
            i = std::lower_bound(ids.begin(), ids.end(), i) - ids.begin();
    std::vector<double> t;
    for (const int64_t i : ids) {
        for (size_t a = 0; a < 3; a++)
            p.points.push_back(coordinate(i, a));
        t.push_back((coordinate(i, 0) + coordinate(i, 1)) + coordinate(i, 2));
        p.point_ids.push_back(i * 3 + 1);
    }
    p.point_data.push_back({"T", fm::number::f64, 0, bytes(t)});
    p.cells = {hexes, quads};
    p.marker_names = {{"wall", 1}, {"inlet", 2}};
    return p;
}

static void check(const fm::part &p, const fm::ranks &all)
{
    CHECK(p.dimension == 3 && p.cells.size() == 2 && p.point_data.size() == 1);
    CHECK((p.marker_names == std::map<std::string, int32_t>{{"wall", 1}, {"inlet", 2}}));
    const auto t = p.point_data[0].as<double>();
    for (const auto &b : p.cells) {
        const size_t each = fm::nodes_of(b.type);
        for (size_t c = 0; c < b.nodes.size() / each; c++) {
            const auto cell = b.first + static_cast<int64_t>(c);
            for (size_t k = 0; k < each; k++) {
                const auto i = static_cast<size_t>(b.nodes[c * each + k]);
                const int64_t wanted = each == 8 ? corners(cell)[k] : side(cell)[k];
                CHECK(i < p.points.size() / 3);
                for (size_t a = 0; a < 3; a++)
                    CHECK(p.points[i * 3 + a] == coordinate(wanted, a));
                CHECK(t[i] == (p.points[i * 3] + p.points[i * 3 + 1]) + p.points[i * 3 + 2]);
            }
            if (each == 8)
                for (size_t k = 0; k < 6; k++)
                    CHECK(b.data.at(0).as<double>()[c * 6 + k] ==
                          static_cast<double>(cell) + static_cast<double>(k) / 8);
            else
                CHECK(b.markers[c] == cell % 3);
        }
    }
    int64_t owned = 0, cells = 0;
    for (const auto &text : all.gather(std::to_string(*p.owned)))
        owned += std::stoll(text);
    for (const auto &text : all.gather(std::to_string(p.cells.at(0).nodes.size() / 8)))
        cells += std::stoll(text);
    CHECK(owned == (N + 1) * (N + 1) * (N + 1) && cells == N * N * N);
}

/* A code's class for its meshes. */
class solver : public fm::interface {
public:
    explicit solver(const fm::part &p) : inside(p) {}
    fm::view to_forebay() const override { return inside.to_forebay(); }
    void from_forebay(fm::part &&read) override { inside = std::move(read); }
    fm::part inside;
};

static void fails(const std::string &text, int number, const std::function<void()> &call)
{
    try {
        call();
    } catch (const fm::error &e) {
        if (std::string(e.what()).find(text) == std::string::npos || e.number() != number)
            throw std::runtime_error("'" + text + "' was expected, not '" + e.what() + "', " +
                                     std::to_string(e.number()));
        return;
    }
    throw std::runtime_error("it didn't fail with '" + text + "'");
}

static void errors(const std::string &path, fm::backend &by, const fm::ranks &all,
                   const std::string &absent)
{
    const bool last = all.rank() + 1 == all.size();
    const auto wrong = [&](const std::string &text, const std::function<void(fm::part &)> &spoil) {
        fm::part p = part(all);
        if (last)
            spoil(p);
        fails(text, 0, [&] { fm::write(p, path, by, all); });
    };
    wrong("has point 1000000", [](fm::part &p) { p.cells[0].nodes[9] = 1000000; });
    wrong("cell 1 has point -1", [](fm::part &p) { p.cells[1].nodes[4] = -1; });
    wrong("'blob' isn't known", [](fm::part &p) { p.cells[1].type = "blob"; });
    wrong("data 'q': it has", [](fm::part &p) { p.cells[0].data[0].bytes.pop_back(); });
    wrong("are no rows", [](fm::part &p) { p.points.pop_back(); });
    wrong("ghosts need point_ids", [](fm::part &p) { p.point_ids.clear(), p.owned = 1; });
    if (all.size() > 1) {
        wrong("is there twice", [](fm::part &p) { p.point_ids[1] = p.point_ids[0]; });
        wrong("doesn't have it", [](fm::part &p) { p.point_data.clear(); });
        wrong("another type or number",
              [](fm::part &p) { p.cells[0].data[0].type = fm::number::i64; });
        wrong("marker 'wall'", [](fm::part &p) { p.marker_names["wall"] = 5; });
    }
    fails("", ENOENT, [&] { fm::write(part(all), absent, by, all); });
    fm::part p;
    fails("", ENOENT, [&] { fm::read(p, absent, by, all); });
    fails("", ENOENT, [&] { fm::read(p, path + "-none", by, all); });
}

static void run(const std::string &what, const std::string &path, fm::backend &by,
                const fm::ranks &all, const std::string &absent)
{
    if (what == "fail")
        return errors(path, by, all, absent);
    solver mesh{what == "write" ? part(all) : fm::part()};
    if (what == "write")
        return fm::write(mesh, path, by, all);
    for (const auto how : {fm::split::stored, fm::split::even}) {
        fm::read(mesh, path, by, all, how);
        check(mesh.inside, all);
    }
    /* As it was read, it is written again and is the same. */
    fm::write(mesh, path + "-again", by, all);
    fm::read(mesh, path + "-again", by, all);
    check(mesh.inside, all);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const std::string what = argv[1], back = argv[2], path = argv[3];
#ifndef WITHOUT_MPI
    MPI_Init(&argc, &argv);
    const fm::mpi all(MPI_COMM_WORLD);
#else
    const fm::single all;
#endif
    try {
        if (back == "iov") {
            const iov::session session("pool");
            fm::iov_backend by(session);
            run(what, path, by, all, "absent/a.h5");
        } else if (back == "posix") {
            fm::posix_backend by;
            run(what, path, by, all, path + "-absent/a.h5");
#ifndef WITHOUT_MPI
        } else {
            fm::mpio_backend by(MPI_COMM_WORLD);
            run(what, path, by, all, path + "-absent/a.h5");
#endif
        }
    } catch (const std::exception &e) {
        std::cerr << what << ": " << e.what() << std::endl;
#ifndef WITHOUT_MPI
        MPI_Abort(MPI_COMM_WORLD, 1);
#endif
        return 1;
    }
#ifndef WITHOUT_MPI
    MPI_Finalize();
#endif
    std::cout << "done " + what + "\n";
    return 0;
}
