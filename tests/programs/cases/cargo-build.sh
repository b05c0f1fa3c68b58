# A small crate: library, build script, tests; built, changed, built again, run.
# needs: cargo rustc gcc
# timeout: 120
# ignore: demo/target cargo
set -euo pipefail
unset CARGO_TARGET_DIR
home=$(getent passwd "$CASE_UID" | cut -d: -f6)
unset ${!CARGO_*} ${!RUSTFLAGS*}
export RUSTUP_HOME=${RUSTUP_HOME:-$home/.rustup} CARGO_HOME=$PWD/cargo CARGO_NET_OFFLINE=true CARGO_TERM_QUIET=true CARGO_INCREMENTAL=1 CARGO_BUILD_JOBS=2
cargo new --vcs none --name demo demo; cd demo
mkdir tests examples
cat > build.rs <<'RS'
fn main() {
    let out = std::env::var("OUT_DIR").unwrap();
    std::fs::write(std::path::Path::new(&out).join("generated.rs"), "pub const GENERATED: u32 = 42;\n").unwrap();
    println!("cargo:rerun-if-changed=build.rs");
}
RS
cat > src/lib.rs <<'RS'
//! Counts words.
include!(concat!(env!("OUT_DIR"), "/generated.rs"));
/// The number of words.
///
/// ```
/// assert_eq!(demo::words("a b c"), 3);
/// ```
pub fn words(text: &str) -> usize { text.split_whitespace().count() }
#[cfg(test)]
mod tests { #[test] fn counts() { assert_eq!(super::words("a  b"), 2); } }
RS
cat > src/main.rs <<'RS'
fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap();
    println!("{} {}", demo::words(&std::fs::read_to_string(&path)?), demo::GENERATED);
    let copy = format!("{path}.copy");
    println!("{}", std::fs::copy(&path, &copy)?);
    std::fs::rename(&copy, format!("{path}.moved"))?;
    let mut names: Vec<_> = std::fs::read_dir(".")?.map(|e| e.unwrap().file_name()).filter(|n| n != "target").collect();
    names.sort();
    println!("{names:?}");
    Ok(())
}
RS
cat > tests/whole.rs <<'RS'
#[test]
fn runs() {
    let dir = std::env::temp_dir();
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_demo")).arg("src/lib.rs").output().unwrap();
    assert!(out.status.success() && dir.is_dir());
}
RS
cargo build; target/debug/demo src/main.rs; rm src/main.rs.moved
cargo build; touch src/main.rs; cargo build; cargo run -- src/lib.rs; rm src/lib.rs.moved
cargo test --lib --tests > "$OUTER/tests" 2>&1 || cat "$OUTER/tests"; grep -c 'test result: ok' "$OUTER/tests" || true; rm "$OUTER/tests" src/lib.rs.moved
sed -i 's/42/43/' build.rs; cargo run --release -- Cargo.toml; cargo clean; ls
