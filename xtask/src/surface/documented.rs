//! Checks that each method that waits documents its cost, its errors, and what dropping it loses.

use serde_json::Value;

use super::signature;

/// A public function or method, as rustdoc describes it.
pub(super) struct Function<'a> {
    /// With the crate's name, and without parameters.
    pub(super) path: String,
    pub(super) item: &'a Value,
}

impl Function<'_> {
    /// The output of awaiting it, if it is async.
    fn answer(&self) -> Option<String> {
        let function = &self.item["inner"]["function"];
        let output = &function["sig"]["output"];
        if function["header"]["is_async"] == true {
            return Some(signature::ty(output));
        }
        let bounds = output["impl_trait"].as_array()?;
        let future = bounds.iter().map(|bound| &bound["trait_bound"]["trait"]);
        let future = future.map(signature::path).find(|path| path.starts_with("Future<"))?;
        Some(future.trim_start_matches("Future<Output = ").to_owned())
    }

    /// The text of a part of its documentation.
    fn part(&self, heading: &str) -> Option<&str> {
        let docs = self.item["docs"].as_str().unwrap_or_default();
        let (_, part) = docs.split_once(&format!("# {heading}\n"))?;
        let part = part.split("\n# ").next().unwrap_or_default().trim();
        (!part.is_empty()).then_some(part)
    }

    fn lacks(&self, parts: &[&str]) -> Option<String> {
        let wrong = |part: &&&str| match self.part(part) {
            None => true,
            // Errors are named by kind, or by reference to another method.
            Some(text) => **part == "Errors" && !text.contains("[`"),
        };
        let lacking: Vec<&str> = parts.iter().filter(wrong).copied().collect();
        (!lacking.is_empty())
            .then(|| format!("{} says nothing of: {}", self.path, lacking.join(", ")))
    }
}

/// The methods that wait and lack some of this documentation.
pub(super) fn findings(functions: &[Function<'_>]) -> Vec<String> {
    let findings = functions.iter().filter_map(|function| {
        let can_fail = function.answer()?.starts_with("Result<");
        let parts: &[&str] = if can_fail {
            &["Cost", "Errors", "Cancel safety"]
        } else {
            &["Cost", "Cancel safety"]
        };
        function.lacks(parts)
    });
    let mut findings: Vec<String> = findings.collect();
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WHOLE: &str = "Does it.\n\n# Cost\n\nOne round trip.\n\n# Errors\n\n[`ErrorKind::Config`].\n\n\
                         # Cancel safety\n\nCancel safe.";

    fn result() -> Value {
        json!({"resolved_path": {"path": "Result", "args": {"angle_bracketed": {
            "args": [{"type": {"tuple": []}}], "constraints": []
        }}}})
    }

    fn function(docs: &str, is_async: bool, output: &Value) -> Value {
        json!({"docs": docs, "inner": {"function": {
            "header": {"is_async": is_async}, "sig": {"inputs": [], "output": output}
        }}})
    }

    fn found(functions: &[(&str, &Value)]) -> Vec<String> {
        let functions = functions.iter().map(|(path, item)| {
            let path = (*path).to_owned();
            Function { path, item }
        });
        findings(&functions.collect::<Vec<_>>())
    }

    #[test]
    fn an_async_method_says_its_cost_its_errors_and_what_a_drop_loses() {
        let whole = function(WHOLE, true, &result());
        assert_eq!(found(&[("a::B::c", &whole)]), [""; 0]);
        for part in ["Cost", "Errors", "Cancel safety"] {
            let without = WHOLE.replace(&format!("# {part}\n"), "");
            let without = function(&without, true, &result());
            assert_eq!(
                found(&[("a::B::c", &without)]),
                [format!("a::B::c says nothing of: {part}")]
            );
        }
        let empty = WHOLE.replace("One round trip.", "");
        assert_eq!(found(&[("a::B::c", &function(&empty, true, &result()))]).len(), 1);
        let vague = WHOLE.replace("[`ErrorKind::Config`]", "When it fails");
        assert_eq!(found(&[("a::B::c", &function(&vague, true, &result()))]).len(), 1);
    }

    #[test]
    fn what_can_not_fail_says_no_errors_and_what_does_not_wait_nothing() {
        let docs = WHOLE.replace("# Errors\n", "");
        let bool = json!({"primitive": "bool"});
        assert_eq!(found(&[("a::B::c", &function(&docs, true, &bool))]), [""; 0]);
        assert_eq!(found(&[("a::B::c", &function("Says it.", false, &result()))]), [""; 0]);
    }

    #[test]
    fn a_method_that_returns_a_future_is_async() {
        let future = json!({"impl_trait": [{"trait_bound": {"trait": {
            "path": "Future", "args": {"angle_bracketed": {
                "args": [],
                "constraints": [{"name": "Output", "binding": {"equality": {"type": result()}}}]
            }}
        }}}]});
        assert_eq!(found(&[("a::B::c", &function("Does it.", false, &future))]).len(), 1);
        let docs = WHOLE.replace("# Errors\n", "");
        assert_eq!(found(&[("a::B::c", &function(&docs, false, &future))]).len(), 1);
    }
}
