# media: memory
# Programs with runtimes of their own, those that are installed: Java, Node, R. What isn't there is left out.
source "$CASES/../lib.sh"
# For which there is nothing to compare if none is installed.
echo begun > log
if type -P java > /dev/null && java --version > /dev/null 2>&1; then
  echo "java is here" >&2
  cat > J.java <<'C'
import java.nio.file.*; import java.nio.*; import java.nio.channels.*; import java.io.*;
public class J { public static void main(String[] a) throws Exception { Path d=Paths.get(a[0]); Files.createDirectories(d); Path p=d.resolve("f");
 Files.write(p, "hello\n".getBytes()); System.out.print(new String(Files.readAllBytes(p)));
 try(FileChannel c=FileChannel.open(d.resolve("m"),StandardOpenOption.CREATE,StandardOpenOption.READ,StandardOpenOption.WRITE)){ MappedByteBuffer m=c.map(FileChannel.MapMode.READ_WRITE,0,100000); for(int i=0;i<100000;i++) m.put(i,(byte)i); m.force(); FileLock l=c.lock(); System.out.println(c.size()+" "+l.isValid()); l.release(); }
 try(RandomAccessFile r=new RandomAccessFile(d.resolve("m").toFile(),"r")){ r.seek(255); System.out.println(r.read()); }
 Thread[] ts=new Thread[8]; for(int k=0;k<8;k++){ final int n=k; ts[k]=new Thread(()->{ try{ for(int i=0;i<50;i++) Files.write(d.resolve("t"+n+"-"+i), new byte[i*100]); }catch(IOException e){ System.out.println(e);} }); ts[k].start(); } for(Thread t:ts) t.join();
 long s=0; try(DirectoryStream<Path> ds=Files.newDirectoryStream(d)){ for(Path q:ds) s+=Files.size(q);} System.out.println(s);
 Files.move(p,d.resolve("g"),StandardCopyOption.ATOMIC_MOVE); System.out.println(Files.exists(d.resolve("g"))); Process pr=new ProcessBuilder("cat",d.resolve("g").toString()).inheritIO().start(); System.out.println(pr.waitFor()); } }
C
  java J.java jd >> log 2>&1
fi
if type -P node > /dev/null; then
  echo "node is here" >&2
  cat > n.js <<'C'
const fs=require('fs'),cp=require('child_process'),p=require('path');const d=process.argv[2];fs.mkdirSync(d,{recursive:true});
fs.writeFileSync(d+'/a','hello');console.log(fs.readFileSync(d+'/a','utf8'));
(async()=>{const q=[];for(let i=0;i<200;i++)q.push(fs.promises.writeFile(d+'/f'+i,'x'.repeat(i)));await Promise.all(q);console.log((await fs.promises.readdir(d)).length);
const s=fs.createWriteStream(d+'/s');for(let i=0;i<1000;i++)s.write('line '+i+'\n');await new Promise(r=>s.end(r));console.log(fs.statSync(d+'/s').size);
console.log(cp.execSync('wc -l < '+d+'/s').toString().trim());await fs.promises.rename(d+'/a',d+'/b');await fs.promises.rm(d,{recursive:true});console.log(fs.existsSync(d));})();
C
  node n.js nd >> log 2>&1
  (cd "$OUTER"; node "$WORK/n.js" "$WORK/nd2") >> log 2>&1
fi
if type -P Rscript > /dev/null; then
  echo "R is here" >&2
  cat > r.R <<'C'
d <- data.frame(a = 1:1000, b = sqrt(1:1000)); write.csv(d, "d.csv", row.names = FALSE); saveRDS(d, "d.rds"); save(d, file = "d.RData")
e <- read.csv("d.csv"); cat(all.equal(d, e), identical(readRDS("d.rds"), d), nrow(e), "\n")
con <- gzfile("z.gz", "w"); writeLines(as.character(1:500), con); close(con); cat(length(readLines("z.gz")), file.exists("d.rds"), "\n")
file.rename("d.csv", "e.csv"); unlink("d.RData"); dir.create("sub"); cat(sort(list.files()), "\n"); cat(system("wc -l < e.csv", intern = TRUE), "\n")
p <- parallel::mclapply(1:4, function(i) { saveRDS(i, paste0("sub/", i)); readRDS(paste0("sub/", i)) }, mc.cores = 2); cat(unlist(p), "\n")
C
  Rscript r.R >> log 2>&1; rm -f d.rds z.gz
fi
cat log
