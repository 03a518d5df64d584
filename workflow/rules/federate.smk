# Training: one method on one federation with one seed.


rule federate:
    # INPUT   samples and partition; for one-shot methods also the clusters and the warm-up's model and tables
    # OUTPUT  results by client and round, by class, costs, clusters, final models
    input:
        plan.inputs("federate"),
    output:
        history="results/{study}/{federation}/seed{seed}/methods/{method}/history.parquet",
        classes="results/{study}/{federation}/seed{seed}/methods/{method}/classes.parquet",
        rounds="results/{study}/{federation}/seed{seed}/methods/{method}/rounds.parquet",
        clusters="results/{study}/{federation}/seed{seed}/methods/{method}/clusters.parquet",
        models="results/{study}/{federation}/seed{seed}/methods/{method}/models.safetensors",
    log:
        "results/{study}/logs/{federation}/seed{seed}/federate/{method}.log",
    benchmark:
        "results/{study}/logs/{federation}/seed{seed}/federate/{method}.tsv"
    conda:
        "../envs/clusterfl.yaml"
    threads: 1
    resources:
        mem_mb=1500,
        runtime=480,
    params:
        settings=plan.settings("federate"),
        code=plan.code("federate"),
        digest=plan.digest("federate"),
    shell:
        """
        clusterfl federate \\
        --config results/{wildcards.study:q}/settings.json \\
        --federation {wildcards.federation:q} \\
        --seed {wildcards.seed} \\
        --method {wildcards.method:q} \\
        --digest {params.digest} \\
        --threads {threads} \\
        2>&1 | tee {log:q}
        """
