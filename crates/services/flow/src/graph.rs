//! The jobs of a run, from the lines that Snakemake's plug-in (`page/plugin.py`) writes.
//!
//! There are two files: `plan` lists all jobs, and is written before the first job begins; `events`
//! has the events after that. Job numbers differ between attempts, so a job is identified by its
//! rule and wildcards. The files are written by a process of the user, so lines may be invalid or
//! incomplete.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Maximum number of jobs that are shown, and of edges.
pub const MAX_JOBS: usize = 2000;
const MAX_EDGES: usize = 10_000;
/// Maximum number of output files of a job that are shown.
const MAX_RESULTS: usize = 20;
/// Maximum number of input files of a job that are read, and of output files.
const MAX_FILES_PER_JOB: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Graph {
    pub jobs: Vec<Job>,
    /// Pairs of indices in `jobs`: the second job needs a file of the first.
    pub edges: Vec<(usize, usize)>,
    /// Number of finished steps, and of all steps, as Snakemake counts them in this attempt.
    pub done: u64,
    pub total: u64,
    /// Whether jobs or edges were left out because of the limits.
    pub is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Job {
    pub rule: String,
    pub wildcards: BTreeMap<String, String>,
    pub state: JobState,
    /// Seconds since 1970.
    pub begun: Option<u64>,
    pub ended: Option<u64>,
    /// Log files of the job. Paths relative to the workflow's directory.
    pub log: Vec<String>,
    /// Output files of the job, up to `MAX_RESULTS`. Paths relative to the workflow's directory.
    pub output: Vec<String>,
    /// Length of the longest path of edges that leads to this job. 0 if it needs no other job.
    pub layer: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    Planned,
    Running,
    Succeeded,
    Failed,
}

/// A line of `plan` or `events`.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event {
    /// Snakemake has started, so job numbers start again.
    Begin,
    Job {
        id: u64,
        rule: String,
        #[serde(default)]
        wildcards: BTreeMap<String, String>,
        #[serde(default)]
        input: Vec<String>,
        #[serde(default)]
        output: Vec<String>,
        #[serde(default)]
        log: Vec<String>,
        #[serde(default)]
        at: u64,
    },
    Done {
        id: u64,
        #[serde(default)]
        at: u64,
    },
    Error {
        id: u64,
        #[serde(default)]
        at: u64,
    },
    Progress {
        done: u64,
        total: u64,
    },
}

/// Reads the text of both files. `is_over`: the run has ended, so jobs that have begun but not
/// ended have failed.
pub fn read(plan: &str, events: &str, is_over: bool) -> Graph {
    let mut all = Reader::default();
    for event in parsed(plan) {
        all.take(event, true);
    }
    for event in parsed(events) {
        all.take(event, false);
    }
    all.finish(is_over)
}

fn parsed(text: &str) -> impl Iterator<Item = Event> {
    text.lines().filter_map(|l| serde_json::from_str(l).ok())
}

#[derive(Default)]
struct Reader {
    jobs: Vec<Job>,
    files: Vec<(Vec<String>, Vec<String>)>,
    known: HashMap<(String, BTreeMap<String, String>), usize>,
    numbers: HashMap<u64, usize>,
    done: u64,
    total: u64,
    is_cut: bool,
}

impl Reader {
    fn take(&mut self, event: Event, is_plan: bool) {
        match event {
            Event::Begin => self.numbers.clear(),
            Event::Job {
                id,
                rule,
                wildcards,
                mut input,
                mut output,
                log,
                at,
            } => {
                let key = (rule.clone(), wildcards.clone());
                let n = match self.known.get(&key) {
                    Some(&n) => n,
                    None if self.jobs.len() >= MAX_JOBS => {
                        self.is_cut = true;
                        return;
                    }
                    None => {
                        input.truncate(MAX_FILES_PER_JOB);
                        output.truncate(MAX_FILES_PER_JOB);
                        self.jobs.push(Job {
                            rule,
                            wildcards,
                            state: JobState::Planned,
                            begun: None,
                            ended: None,
                            log,
                            output: output.iter().take(MAX_RESULTS).cloned().collect(),
                            layer: 0,
                        });
                        self.files.push((input, output));
                        self.known.insert(key, self.jobs.len() - 1);
                        self.jobs.len() - 1
                    }
                };
                self.numbers.insert(id, n);
                if !is_plan {
                    let job = &mut self.jobs[n];
                    (job.state, job.begun, job.ended) = (JobState::Running, Some(at), None);
                }
            }
            Event::Done { id, at } => self.end(id, at, JobState::Succeeded),
            Event::Error { id, at } => self.end(id, at, JobState::Failed),
            Event::Progress { done, total } => (self.done, self.total) = (done, total),
        }
    }

    fn end(&mut self, id: u64, at: u64, state: JobState) {
        if let Some(&n) = self.numbers.get(&id) {
            let job = &mut self.jobs[n];
            (job.state, job.ended) = (state, Some(at));
        }
    }

    fn finish(mut self, is_over: bool) -> Graph {
        if is_over {
            for job in &mut self.jobs {
                if job.state == JobState::Running {
                    job.state = JobState::Failed;
                }
            }
        }
        let mut producers = HashMap::new();
        for (n, (_, output)) in self.files.iter().enumerate() {
            for file in output {
                producers.insert(file.as_str(), n);
            }
        }
        let mut edges = Vec::new();
        'jobs: for (n, (input, _)) in self.files.iter().enumerate() {
            let mut from: Vec<usize> = input
                .iter()
                .filter_map(|f| producers.get(f.as_str()).copied())
                .filter(|&producer| producer != n)
                .collect();
            from.sort_unstable();
            from.dedup();
            for producer in from {
                if edges.len() >= MAX_EDGES {
                    self.is_cut = true;
                    break 'jobs;
                }
                edges.push((producer, n));
            }
        }
        self.layers(&edges);
        Graph {
            jobs: self.jobs,
            edges,
            done: self.done,
            total: self.total,
            is_cut: self.is_cut,
        }
    }

    /// Computes the jobs' layers in topological order. A forged file may contain cycles; their
    /// edges are ignored.
    fn layers(&mut self, edges: &[(usize, usize)]) {
        let mut after = vec![Vec::new(); self.jobs.len()];
        let mut needs = vec![0usize; self.jobs.len()];
        for &(from, to) in edges {
            after[from].push(to);
            needs[to] += 1;
        }
        let mut free: Vec<usize> = (0..needs.len()).filter(|&n| needs[n] == 0).collect();
        while let Some(n) = free.pop() {
            for &to in &after[n] {
                self.jobs[to].layer = self.jobs[to].layer.max(self.jobs[n].layer + 1);
                needs[to] -= 1;
                if needs[to] == 0 {
                    free.push(to);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fuzz::Random;

    const PLAN: &str = r#"{"event":"begin"}
{"event":"job","id":1,"rule":"make","wildcards":{"s":"a"},"output":["a.txt"]}
{"event":"job","id":2,"rule":"count","wildcards":{"s":"a"},"input":["a.txt"],"output":["a.csv"]}
{"event":"job","id":3,"rule":"all","input":["a.csv","a.txt"]}
"#;

    #[test]
    fn jobs_through_attempts() {
        let events = r#"{"event":"begin"}
{"event":"job","id":1,"rule":"make","wildcards":{"s":"a"},"at":5}
{"event":"done","id":1,"at":6}
{"event":"job","id":2,"rule":"count","wildcards":{"s":"a"},"at":7}
{"event":"begin"}
{"event":"job","id":9,"rule":"count","wildcards":{"s":"a"},"at":8}
{"event":"error","id":2}
{"event":"progress","done":1,"total":2}
{"event":"job","id""#;
        let graph = read(PLAN, events, false);
        let states: Vec<JobState> = graph.jobs.iter().map(|j| j.state).collect();
        assert_eq!(
            states,
            [JobState::Succeeded, JobState::Running, JobState::Planned]
        );
        assert_eq!(graph.edges, [(0, 1), (0, 2), (1, 2)]);
        let layers: Vec<usize> = graph.jobs.iter().map(|j| j.layer).collect();
        assert_eq!(layers, [0, 1, 2]);
        assert_eq!(graph.jobs[1].output, ["a.csv"]);
        assert_eq!(
            (graph.done, graph.total, graph.jobs[1].begun),
            (1, 2, Some(8))
        );
        assert_eq!(read(PLAN, events, true).jobs[1].state, JobState::Failed);
    }

    #[test]
    fn garbage_and_circles() {
        let circle = r#"{"event":"job","id":1,"rule":"a","input":["x"],"output":["y"]}
{"event":"job","id":2,"rule":"b","input":["y"],"output":["x"]}"#;
        assert_eq!(read(circle, "", false).edges.len(), 2);
        let mut random = Random::new(5);
        let mut bytes = PLAN.as_bytes().to_vec();
        for _ in 0..5000 {
            let n = random.below(bytes.len());
            bytes[n] = random.number() as u8;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            read(&text, &text, random.once_in(2));
        }
    }
}
