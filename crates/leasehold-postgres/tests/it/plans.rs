//! How the server plans the statements of the functions.

use std::sync::{Arc, Mutex};

use leasehold_testkit::sql::PostgreSql;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::common::{key, request, store_at, take};

/// With more, the server would compile a statement to machine code each time.
const COST_MAX: f64 = 1_000.0;

#[tokio::test]
async fn no_statement_of_a_function_seems_costly_before_the_tables_are_analysed() {
    // No statistics come meanwhile.
    let server = PostgreSql::start_with(&["autovacuum=off"]);
    let store = store_at(&format!("{}?create=yes", server.url())).await;
    take(&store, &request(&key())).await;

    let mut config = tokio_postgres::Config::new();
    config.host_path(server.socket_dir()).port(server.port()).user("leasehold").dbname("postgres");
    let (session, mut connection) = config.connect(NoTls).await.unwrap();
    let plans = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&plans);
    tokio::spawn(async move {
        while let Some(Ok(said)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notice(notice) = said {
                seen.lock().unwrap().push(notice.message().to_owned());
            }
        }
    });
    let setting = "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; \
        SET auto_explain.log_nested_statements = on; SET auto_explain.log_level = 'notice'";
    session.batch_execute(setting).await.unwrap();
    let later = "clock_timestamp() + interval '1 minute'";
    let token = "'00000000-0000-0000-0000-000000000001'";
    let renewing = format!(
        "SELECT * FROM leasehold.renew_1({later}, '{{new}}', '{{2}}', ARRAY[{token}::uuid], '{{1000}}', '{{0}}', '{{f}}', 0)"
    );
    let taking = format!(
        "SELECT * FROM leasehold.take_1({later}, '{{new,newer}}', '{{1,2}}', ARRAY[{token}, {token}]::uuid[], \
         '{{1000000,1000000}}', '{{1,1}}', '{{1,1}}', '{{a,b}}', '{{c,d}}', 0)"
    );
    let releasing = format!(
        "SELECT * FROM leasehold.release_1('{{new,absent}}', '{{3,4}}', ARRAY[{token}, {token}]::uuid[], '{{t,t}}', 0)"
    );
    // Taken anew, and busy.
    for statement in [&taking, &renewing, &releasing, &taking] {
        session.query(statement, &[]).await.unwrap();
    }
    let version = "(SELECT ARRAY[l.version, NULL] FROM leasehold.lock l WHERE l.name = 'new')";
    let nothing = "NULL, ".repeat(9) + "NULL";
    let writing = format!(
        "SELECT leasehold.write_1(1, NULL, 60000000, '{{new,other}}', {version}, '{{5,6}}', '{{t,t}}', \
         ARRAY[{later}, {later}], '{{1,1}}', '{{0,0}}', '{{0,0}}', {nothing}, 0)"
    );
    assert_eq!(session.query_one(&writing, &[]).await.unwrap().get::<_, i32>(0), 1);
    for statement in [
        "SELECT leasehold.adopt_1(false)::text",
        "SELECT leasehold.forget_1(256, 600)",
        "SELECT leasehold.read_1('new')",
    ] {
        session.query(statement, &[]).await.unwrap();
    }
    let plans = plans.lock().unwrap();
    let text = plans.join("\n");
    let costs: Vec<f64> = text
        .split("(cost=")
        .skip(1)
        .map(|rest| {
            let total = rest.split("..").nth(1).unwrap();
            total.split(' ').next().unwrap().parse().unwrap()
        })
        .collect();
    assert!(costs.len() > 30, "{}", costs.len());
    for table in ["on lock l", "on meta m", "on alive a"] {
        assert!(text.contains(table), "no plan {table}");
    }
    let most = costs.into_iter().fold(0.0, f64::max);
    assert!(most < COST_MAX, "{most}:\n{text}");
}
