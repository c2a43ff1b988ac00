package waypost

import java.io.{FileNotFoundException, IOException}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.FileAlreadyExistsException
import java.util.{Arrays, Iterator}

import io.delta.storage.HadoopFileSystemLogStore
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataOutputStream, FileSystem, Path}

/** Delta's log on S3, where of several writers of one version exactly one succeeds: each entry is put with
  * `If-None-Match: *`, as delta-rs puts its own. Delta's stores for S3 either hold a lock within one JVM or ask for a
  * table in DynamoDB; none of them knows of the other writers of a lake.
  */
class ConditionalLogStore(initial: Configuration) extends HadoopFileSystemLogStore(initial) {

  override def write(path: Path, actions: Iterator[String], overwrite: java.lang.Boolean, conf: Configuration): Unit = {
    val store = path.getFileSystem(conf)
    val entry = lines(actions)
    if (overwrite) put(entry, store.create(path, true))
    else putNew(store, path, entry)
  }

  /** An object on S3 is there whole or not at all. */
  override def isPartialWriteVisible(path: Path, conf: Configuration): java.lang.Boolean = false

  private def putNew(store: FileSystem, path: Path, entry: Array[Byte]): Unit =
    try put(entry, conditional(store, path))
    catch {
      // The answer to a put that was done may be lost, and the same put sent again is refused: what is there decides.
      case refused: IOException =>
        if (!Arrays.equals(read(store, path, refused), entry)) {
          throw new FileAlreadyExistsException(path.toString).initCause(refused)
        }
    }

  /** Without S3A's own look whether something is there: it is another request, and proves nothing. */
  private def conditional(store: FileSystem, path: Path): FSDataOutputStream =
    store
      .createFile(path)
      .recursive()
      .overwrite(true)
      .must("fs.option.create.conditional.overwrite", true)
      .build()

  private def put(entry: Array[Byte], out: FSDataOutputStream): Unit = {
    out.write(entry)
    out.close()
  }

  private def read(store: FileSystem, path: Path, refused: IOException): Array[Byte] = {
    val in =
      try store.open(path)
      catch { case _: FileNotFoundException => throw refused }
    try in.readAllBytes()
    finally in.close()
  }

  private def lines(actions: Iterator[String]): Array[Byte] = {
    val text = new StringBuilder
    actions.forEachRemaining(action => text.append(action).append('\n'))
    text.toString.getBytes(UTF_8)
  }
}
