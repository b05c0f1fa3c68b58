// await.cpp: time steps that are written by a coroutine: await PLACE [STEPS]
//
//     c++ -std=c++20 -o await examples/verbs/await.cpp $(pkg-config --cflags --libs forebay)
//     forebay up;  ./await pool:default;  forebay down
//
// Each co_await lets the thread go on with something else. Here that is main(), which starts one coroutine for each of three fields, and
// waits for their ends.
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include <forebay/iov.hpp>

// Writes all steps of a field, each while the next is computed. Its size at the end.
static iov::task<uint64_t> write_field(const iov::session &session, const iov::workspace &workspace,
                                       std::string name, int steps)
{
    std::vector<double> now(1 << 16), next(now.size());
    const iov::collection field = workspace.create(name, {.meta = {{"steps", std::to_string(steps)}}});
    for (int step = 0; step < steps; step++) {
        iov::batch writing(session);
        const iov::request written = writing.append(field, std::as_bytes(std::span(now)));
        writing.start();
        for (size_t i = 0; i < next.size(); i++)
            next[i] = now[i] + static_cast<double>(i);
        co_await written;
        std::swap(now, next);
    }
    co_return field.size();
}

int main(int argc, char **argv)
try {
    const int steps = argc > 2 ? std::stoi(argv[2]) : 10;
    const iov::session session(argc > 1 ? argv[1] : "memory");
    iov::workspace workspace = session.create_workspace("await");
    std::vector<iov::task<uint64_t>> fields;
    for (const char *name : {"pressure", "velocity", "density"})
        fields.push_back(write_field(session, workspace, name, steps));
    for (auto &field : fields)
        std::cout << field.get() << " bytes\n";
    for (const iov::record &known : workspace.search())
        workspace.remove(known.name);
    workspace.remove_self();
} catch (const std::exception &e) {
    std::cerr << "await: " << e.what() << "\n";
    return 1;
}
