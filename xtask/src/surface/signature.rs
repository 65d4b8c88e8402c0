//! Prints signatures from rustdoc's description for machines, with short paths.

use serde_json::Value;

/// A function's parameters and answer; an async one is marked.
pub(super) fn function(function: &Value) -> String {
    let header = &function["header"];
    let mark = |is: &Value, mark| if *is == true { mark } else { "" };
    let inputs = list(&function["sig"]["inputs"], |input| {
        let (name, ty) = (input[0].as_str().unwrap_or_default(), self::ty(&input[1]));
        match (name, ty.as_str()) {
            ("self", "Self") => "self".to_owned(),
            ("self", "&Self") => "&self".to_owned(),
            ("self", "&mut Self") => "&mut self".to_owned(),
            _ => format!("{name}: {ty}"),
        }
    });
    let output = &function["sig"]["output"];
    let output = if output.is_null() { String::new() } else { format!(" -> {}", self::ty(output)) };
    format!(
        "{}({inputs}){output}{}{}",
        generics(&function["generics"]),
        mark(&header["is_async"], " [async]"),
        mark(&header["is_const"], " [const]"),
    )
}

/// Generic parameters that a caller can name, with their bounds.
pub(super) fn generics(generics: &Value) -> String {
    let mut shown = Vec::new();
    for parameter in generics["params"].as_array().into_iter().flatten() {
        let kind = &parameter["kind"];
        if kind["type"]["is_synthetic"] != true {
            let name = parameter["name"].as_str().unwrap_or_default();
            shown.push(format!("{name}{}", bounds(&kind["type"]["bounds"])));
        }
    }
    for predicate in generics["where_predicates"].as_array().into_iter().flatten() {
        let bound = &predicate["bound_predicate"];
        shown.push(format!("{}{}", ty(&bound["type"]), bounds(&bound["bounds"])));
    }
    if shown.is_empty() { String::new() } else { format!("<{}>", shown.join(", ")) }
}

/// `: A + B`, or nothing.
pub(super) fn bounds(bounds: &Value) -> String {
    let bounds = sum(bounds);
    if bounds.is_empty() { bounds } else { format!(": {bounds}") }
}

fn sum(bounds: &Value) -> String {
    let bounds = bounds.as_array().into_iter().flatten().map(|bound| {
        if let Some(bound) = bound.get("trait_bound") {
            let maybe = if bound["modifier"] == "maybe" { "?" } else { "" };
            format!("{maybe}{}", path(&bound["trait"]))
        } else if let Some(lifetime) = bound["outlives"].as_str() {
            lifetime.to_owned()
        } else {
            "use<…>".to_owned()
        }
    });
    bounds.collect::<Vec<_>>().join(" + ")
}

/// The last name of a path, with its arguments.
pub(super) fn path(path: &Value) -> String {
    let name = path["path"].as_str().unwrap_or_default();
    let name = name.rsplit("::").next().unwrap_or(name);
    format!("{name}{}", arguments(&path["args"]))
}

fn arguments(of: &Value) -> String {
    if let Some(angle) = of.get("angle_bracketed") {
        let mut shown = list(&angle["args"], |argument| {
            argument["lifetime"].as_str().map_or_else(
                || match argument.get("type") {
                    Some(argument) => ty(argument),
                    None => argument["const"]["expr"].as_str().unwrap_or("_").to_owned(),
                },
                str::to_owned,
            )
        });
        let constraints = list(&angle["constraints"], |constraint| {
            let (name, binding) = (constraint["name"].as_str(), &constraint["binding"]);
            let name = name.unwrap_or_default();
            match binding.get("equality") {
                Some(term) => format!("{name} = {}", ty(&term["type"])),
                None => format!("{name}{}", bounds(&binding["constraint"])),
            }
        });
        if !shown.is_empty() && !constraints.is_empty() {
            shown.push_str(", ");
        }
        shown.push_str(&constraints);
        if shown.is_empty() { shown } else { format!("<{shown}>") }
    } else if let Some(call) = of.get("parenthesized") {
        let output = &call["output"];
        let output = if output.is_null() { String::new() } else { format!(" -> {}", ty(output)) };
        format!("({}){output}", list(&call["inputs"], ty))
    } else {
        String::new()
    }
}

/// A type.
pub(super) fn ty(of: &Value) -> String {
    let Some((kind, what)) = of.as_object().and_then(|of| of.iter().next()) else {
        return "_".to_owned();
    };
    match kind.as_str() {
        "resolved_path" => path(what),
        "generic" | "primitive" => what.as_str().unwrap_or_default().to_owned(),
        "borrowed_ref" => {
            let lifetime = what["lifetime"].as_str().map(|name| format!("{name} "));
            let mutable = if what["is_mutable"] == true { "mut " } else { "" };
            format!("&{}{mutable}{}", lifetime.unwrap_or_default(), ty(&what["type"]))
        }
        "impl_trait" => format!("impl {}", sum(what)),
        "dyn_trait" => {
            let traits = what["traits"].as_array().into_iter().flatten();
            let traits = traits.map(|bound| path(&bound["trait"])).collect::<Vec<_>>();
            format!("dyn {}", traits.join(" + "))
        }
        "tuple" => format!("({})", list(what, ty)),
        "slice" => format!("[{}]", ty(what)),
        "array" => format!("[{}; {}]", ty(&what["type"]), what["len"].as_str().unwrap_or("_")),
        "qualified_path" => {
            let of_trait = path(&what["trait"]);
            let name = what["name"].as_str().unwrap_or_default();
            match (ty(&what["self_type"]), of_trait) {
                // Of the trait that is being described.
                (of, of_trait) if of_trait.is_empty() => format!("{of}::{name}"),
                (of, of_trait) => format!("<{of} as {of_trait}>::{name}"),
            }
        }
        "function_pointer" => format!("fn{}", function(what)),
        _ => kind.clone(),
    }
}

fn list(values: &Value, shown: impl Fn(&Value) -> String) -> String {
    values.as_array().into_iter().flatten().map(shown).collect::<Vec<_>>().join(", ")
}
