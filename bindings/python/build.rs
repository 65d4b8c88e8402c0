//! Takes the docstrings out of the stubs, so that `help()` shows what an editor shows.
//!
//! The output directory gets `docs/Mutex.lock` with that method's text, and `docs/aio.Mutex.lock`
//! with the text for tasks. The two are the same if the stub for tasks has no text of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs, io, iter};

fn main() -> io::Result<()> {
    // In the source archive the package of Python stands at the top.
    let places = ["python/leasehold", "../../python/leasehold"].map(Path::new);
    let package = places.into_iter().find(|it| it.is_dir()).unwrap_or(places[0]);
    let stub = |name: &str| {
        let path = package.join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        fs::read_to_string(path).map(|text| docstrings(&text))
    };
    let mut threads = stub("__init__.pyi")?;
    threads.extend(stub("_leasehold.pyi")?);
    let mut tasks = threads.clone();
    tasks.extend(stub("aio.pyi")?);
    let folder = Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("docs");
    fs::create_dir_all(&folder)?;
    for (prefix, docs) in [("", threads), ("aio.", tasks)] {
        for (name, text) in docs {
            fs::write(folder.join(format!("{prefix}{name}")), text)?;
        }
    }
    Ok(())
}

/// The docstrings of a stub's classes, and of their methods and properties.
fn docstrings(stub: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let (mut class, mut name) = (String::new(), None);
    let mut lines = stub.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let word = |after: &str| {
            let rest = code.strip_prefix(after)?;
            rest.split(|it: char| !it.is_alphanumeric() && it != '_').next().map(str::to_owned)
        };
        if let Some(begun) = word("class ") {
            class.clone_from(&begun);
            name = Some(begun);
        } else if let Some(method) = word("def ").or_else(|| word("async def ")) {
            name = Some(format!("{class}.{method}"));
        } else if let Some(first) = code.strip_prefix("\"\"\"") {
            let rest = iter::once(first).chain(lines.by_ref().map(str::trim_start));
            let mut text = Vec::new();
            for line in rest {
                let is_last = line.ends_with("\"\"\"");
                text.push(line.trim_end_matches('"'));
                if is_last {
                    break;
                }
            }
            if let Some(name) = name.take() {
                found.insert(name, text.join("\n").trim_end().to_owned());
            }
        }
    }
    found
}
