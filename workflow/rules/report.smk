# Everything a reader wants to see.


rule report:
    # INPUT   all tables of the study
    # OUTPUT  a self-contained page, the summary, tables (CSV) and figures (SVG, PNG)
    input:
        ask.inputs("report"),
    output:
        page=report(
            "results/{study}/report.html",
            caption="../report/page.rst",
            category="Page",
        ),
        summary="results/{study}/summary.parquet",
        study="results/{study}/study.json",
        tables=report(
            directory("results/{study}/tables"),
            patterns=["{name}.csv"],
            caption="../report/table.rst",
            category="Tables",
        ),
        figures=report(
            directory("results/{study}/figures"),
            patterns=["{name}.svg"],
            caption="../report/figure.rst",
            category="Figures",
        ),
    log:
        "results/{study}/logs/report.log",
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=requests.memory("report", 1500),
        runtime=requests.minutes("report", 30),
    params:
        settings=ask.settings("report"),
        code=ask.code("report"),
        digest=ask.digest("report"),
    shell:
        """
        clusterfl report \\
        --config results/{wildcards.study:q}/settings.json \\
        --digest {params.digest} --needed \\
        2>&1 | tee {log:q}
        """
