// stream.cpp: stream.c in C++: time steps that are written from two buffers in turn.
//
// With verbs only: stream.c has the same with POSIX calls. The ranks, the line and the check are kernel.h's.
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "forebay/iov.hpp"
#include "kernel.h"

namespace {

constexpr std::size_t step_bytes = 4 * MIB, cells_count = 4000;
constexpr int rounds = 500;

void stream(job *job, const iov::session &session, const iov::workspace &workspace)
{
    const int steps = 5 * job->scale;
    const auto seed = static_cast<std::uint64_t>(job->rank);
    const std::string name = "steps." + std::to_string(job->rank);
    std::vector<double> cells(cells_count);
    std::array<std::vector<std::byte>, 2> buffers;
    for (auto &buffer : buffers)
        buffer.resize(step_bytes);

    const double began = job_begin(job);
    iov::collection file = workspace.create(name, {.controls = job->controls});
    std::unique_ptr<iov::batch> writing;
    for (int step = 0; step < steps; step++) {
        auto &buffer = buffers.at(static_cast<std::size_t>(step) % 2);
        job_compute(cells.data(), cells.size(), rounds);
        job_stamp(buffer.data(), buffer.size(), seed, static_cast<std::uint64_t>(step) * step_bytes);
        if (writing) {
            writing->wait();
            writing->result();
        }
        writing = std::make_unique<iov::batch>(session);
        static_cast<void>(writing->append(file, buffer));
        writing->start();
    }
    writing->wait();
    writing->result();
    file.close();
    job_done(job, began, "steps", steps, "/s");

    file = workspace.open(name);
    for (int step = 0; step < steps; step++) {
        const auto at = static_cast<std::uint64_t>(step) * step_bytes;
        if (file.read(buffers[0], at) != step_bytes)
            job_fail(job, "step %d isn't there", step);
        job_check(job, buffers[0].data(), step_bytes, seed, at);
    }
    file.close();
    workspace.remove(name);
}

void run(job *job)
{
    try {
        const iov::session session(job->place);
        stream(job, session, session.load_workspace("stream-cpp"));
    } catch (const iov::error &e) {
        job_fail(job, "%s", e.what());
    }
}

} // namespace

int main(int argc, char **argv)
{
    const kernel kernel = {
        "stream-cpp", "consistency=session,mutability=append,parallelism=exclusive", run, 0};
    return kernel_main(argc, argv, &kernel);
}
